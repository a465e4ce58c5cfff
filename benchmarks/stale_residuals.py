"""Remedies for stale residuals, beside plain error feedback: accuracy after the same bytes up.

With 10 of 100 clients in a round, a residual is ten rounds old when its client takes part again.
`python benchmarks/stale_residuals.py mlp-fashion --data-dir DATA` trains STC with each remedy and
prints a table:

- `step-ahead`: a client trains from weights + a * residual, so that its gradient is that of the
  model which its earlier updates lead to (SA-PEF, arXiv 2601.20738).
- `decay`: a residual shrinks by a factor with each round that its client is away.
- `oldest-first`: values are selected by magnitude * age ** w, where the age counts uploads.
- `mask`: a client's momentum is reset where its upload sends a value (deep gradient compression).
- `differences`: a client has no residual. It sends the difference of its change to the sum of its
  uploads so far, and the server adds the mean of these sums over all clients (EF21 with partial
  participation, arXiv 2110.03294; with the correction of SAGA, arXiv 1407.0202).

`--results FILE` keeps finished runs, one per line, so that an interrupted table continues.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fedtern import Environment, Method, stc
from fedtern.core.carried import NO_VALUES, Values
from fedtern.core.compressors import SparseTernary, count_kept
from fedtern.core.feedback import ErrorFeedback, State
from fedtern.core.kernels import top_k
from fedtern.core.layout import Layout, Vector
from fedtern.core.methods import Link
from fedtern.core.protocol import Uplink
from fedtern.core.updates import Ternary, Update
from fedtern.data.hyperparameters import Sgd
from fedtern.federation.client_session import Job, Outcome, Scores, Trainer
from fedtern.training.tasks import get_task
from fedtern.transports.local.federation import Federation
from fedtern.transports.local.simulation import federate

SPLITS: dict[str, dict[str, Any]] = {
    "iid": {},
    "two": {"classes_per_client": 2},
    "one": {"classes_per_client": 1},
    "unbalanced": {"clients": 200, "participation": 0.025, "gamma": 0.9},
}


@dataclass(frozen=True)
class OldestFirst:
    """Error feedback that prefers values which have waited for long."""

    part_id: ClassVar[str] = "oldest_first"
    p: float
    weight: float
    uses_moments: ClassVar[bool] = False

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        """Send the signs of the k largest products of magnitude and age."""
        target = delta + state["residual"] if "residual" in state else delta
        age = state["age"] + np.float32(1) if "age" in state else np.ones_like(delta)
        kept = top_k(
            np.abs(target) * age ** np.float32(self.weight), count_kept(delta.size, self.p)
        )
        kept = kept[target[kept] != 0]
        values = target[kept]
        mean = np.array([np.abs(values).mean() if kept.size else 0], np.float32)
        update = Ternary(delta.size, kept, values > 0, mean)
        age[kept] = 0
        update.add_to(target, -1.0)
        return update, {"residual": target, "age": age}

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """Not needed: simulated clients do not replay logs."""
        raise NotImplementedError

    def give_back(self, state: State, update: Update) -> State:
        """Add the whole update to the residual."""
        return ErrorFeedback(SparseTernary(self.p)).give_back(state, update)


@dataclass(frozen=True)
class Differences:
    """Sends the difference of each delta to the sum of the updates so far, the memory."""

    part_id: ClassVar[str] = "differences"
    compressor: SparseTernary
    uses_moments: ClassVar[bool] = False

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        """Compress delta - memory, and add the update to the memory."""
        memory = state["memory"].copy() if "memory" in state else np.zeros_like(delta)
        update = self.compressor.compress(delta - memory, layout, rng)
        update.add_to(memory)
        return update, {"memory": memory}

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """Not needed: simulated clients do not replay logs."""
        raise NotImplementedError

    def give_back(self, state: State, update: Update) -> State:
        """Subtract the update from the memory."""
        memory = state["memory"].copy()
        update.add_to(memory, -1.0)
        return {"memory": memory}


@dataclass(frozen=True)
class MeanMemory:
    """A server optimiser that adds the mean memory of all clients to the mean difference.

    Args:
        participation: the share of the clients in a round.

    """

    part_id: ClassVar[str] = "mean_memory"
    participation: float

    def step(self, delta: Vector, state: State) -> tuple[Vector, State]:
        """Return the change for the mean difference of a round."""
        mean = state["mean"] if "mean" in state else np.zeros_like(delta)
        return delta + mean, {"mean": mean + np.float32(self.participation) * delta}


class AheadTrainer:
    """Trains each client from weights of its own.

    Args:
        trainer: trains the jobs.
        offset: returns the difference of a client's start to the weights.

    """

    together = 1

    def __init__(self, trainer: Trainer, offset: Callable[[int], Vector]) -> None:
        self.trainer = trainer
        self.offset = offset

    def train(
        self, weights: Vector, jobs: Iterable[Job], carried: Values = NO_VALUES
    ) -> Iterator[Outcome]:
        """Yield the outcome of each job, in order."""
        for job in jobs:
            yield from self.trainer.train(weights + self.offset(job.client), [job], carried)

    def evaluate(self, weights: Vector, carried: Values = NO_VALUES) -> Scores:
        """Return loss and metrics of the weights."""
        return self.trainer.evaluate(weights, carried)

    def close(self) -> None:
        """Close the trainer."""
        self.trainer.close()


class RemedyFederation(Federation):
    """A federation whose clients step ahead, or whose residuals decay.

    Args:
        arguments: arguments of ``Federation``.
        ahead: the share of the residual that is added to the weights before training.
        decay: the factor of a residual for each round since its client's last upload.
        options: further arguments of ``Federation``.

    """

    def __init__(
        self, *arguments: Any, ahead: float = 0.0, decay: float = 1.0, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.decay = decay
        self.last_upload: dict[int, int] = {}
        if ahead:
            self.trainer = AheadTrainer(
                self.trainer, lambda i: np.float32(ahead) * self.residual(i)
            )

    def residual(self, i: int) -> Vector:
        """Return the residual of a client."""
        state = super().uplink(i).state
        return state["residual"] if "residual" in state else np.zeros_like(self.witness.weights)

    def uplink(self, i: int) -> Uplink:
        """Return a client's link, with its residual after the rounds that it was away."""
        link = super().uplink(i)
        lag = self.server.round - self.last_upload.get(i, self.server.round)
        self.last_upload[i] = self.server.round
        if self.decay != 1 and "residual" in link.state:
            shrunk = link.state["residual"] * np.float32(self.decay**lag)
            link.state = {**link.state, "residual": shrunk}
        return link


def remedies(
    p: float, local_steps: int = 1, participation: float = 0.1
) -> dict[str, tuple[Method, dict[str, float]]]:
    """Return the method and the options of ``RemedyFederation`` of each remedy."""
    plain = stc(p, p, local_steps)
    oldest = replace(plain, up=Link(OldestFirst(p, 0.5), plain.up.codec))
    differences = replace(
        plain,
        up=Link(Differences(SparseTernary(p)), plain.up.codec),
        server_optimizer=MeanMemory(participation),
    )
    return {
        "none": (plain, {}),
        "step-ahead a=0.5": (plain, {"ahead": 0.5}),
        "decay 0.98": (plain, {"decay": 0.98}),
        "oldest-first w=0.5": (oldest, {}),
        "mask": (replace(plain, momentum="mask"), {}),
        "differences": (differences, {}),
    }


def run(task_name: str, split: str, remedy: str, seed: int, arguments: Any) -> dict[str, Any]:
    """Train one federation and return its results."""
    torch.set_num_threads(1)
    task = get_task(task_name)
    environment = Environment(**SPLITS[split])
    found = remedies(arguments.p, arguments.local_steps, environment.participation)
    method, options = found[remedy]
    momentum = task.momentum if arguments.momentum is None else arguments.momentum
    federation = federate(
        task,
        task.load(arguments.data_dir),
        method,
        environment,
        Sgd(task.learning_rate, momentum, task.weight_decay),
        seed=seed,
        workers=0,
        make=partial(RemedyFederation, **options),
    )
    accuracies = []
    with closing(federation):
        while federation.iteration < arguments.iterations:
            federation.step()
            if federation.iteration % arguments.evaluate_every < method.local_steps:
                accuracies.append(federation.evaluate().accuracy)
        last = federation.evaluate()
    return {
        "task": task_name,
        "split": split,
        "remedy": remedy,
        "p": arguments.p,
        "momentum": momentum,
        "local_steps": arguments.local_steps,
        "iterations": arguments.iterations,
        "seed": seed,
        "accuracy": statistics.fmean(accuracies[-3:]),
        "up_bytes": last.up_bytes_mean,
        "down_bytes": last.down_bytes_mean,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task")
    parser.add_argument("--split", choices=SPLITS, default="two")
    parser.add_argument("--p", type=float, default=1 / 100)
    parser.add_argument("--momentum", type=float, help="of the clients; by default the task's")
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--evaluate-every", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--remedies", nargs="+", choices=remedies(0.01), default=None)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    key = ("task", "split", "remedy", "p", "momentum", "local_steps", "iterations", "seed")
    path: Path | None = arguments.results
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    known = [{"local_steps": 1, **json.loads(line)} for line in lines]
    momentum = get_task(arguments.task).momentum
    if arguments.momentum is not None:
        momentum = arguments.momentum
    print(
        f"{arguments.task}, {arguments.split}, p = {arguments.p:g}, momentum {momentum:g},"
        f" {arguments.local_steps} local steps"
    )
    for remedy in arguments.remedies or remedies(0.01):
        found = []
        for seed in range(arguments.seeds):
            wanted = (
                *(arguments.task, arguments.split, remedy, arguments.p, momentum),
                *(arguments.local_steps, arguments.iterations, seed),
            )
            result = next((k for k in known if tuple(k[name] for name in key) == wanted), None)
            if result is None:
                result = run(arguments.task, arguments.split, remedy, seed, arguments)
                if path is not None:
                    with path.open("a") as file:
                        file.write(json.dumps(result) + "\n")
            found.append(result)
        values = ", ".join(f"{100 * each['accuracy']:.1f}" for each in found)
        megabytes = statistics.fmean(each["up_bytes"] for each in found) / 1e6
        print(f"{remedy:20} {values} %  {megabytes:.3g} MB up", flush=True)


if __name__ == "__main__":
    main()
