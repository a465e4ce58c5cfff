"""Accuracy of STC if clients keep their residual with fewer bits, as a small device would.

`python benchmarks/residuals.py` trains digits with 100 clients of one class each, 10 of them in
every round, and prints the accuracy of each kind of residual: mean and standard deviation over
seeds. It takes about ten minutes of one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern import Environment, Link, Method, simulate, stc
from fedtern.core.compressors import Compressor
from fedtern.core.feedback import ErrorFeedback, State
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Update

ENVIRONMENT = Environment(clients=100, participation=0.1, classes_per_client=1)
ITERATIONS = 600
P = 1 / 50

Rounding = Callable[[Vector, Layout, np.random.Generator], Vector]


def exact(x: Vector, _layout: Layout, _rng: np.random.Generator) -> Vector:
    """Four bytes per parameter."""
    return x


def float16(x: Vector, _layout: Layout, _rng: np.random.Generator) -> Vector:
    """Two bytes per parameter, rounded to nearest."""
    return x.astype(np.float16).astype(np.float32)


def int8(x: Vector, layout: Layout, _rng: np.random.Generator) -> Vector:
    """One byte per parameter and one scale per tensor, rounded to nearest."""
    return _on_a_grid(x, layout, np.rint)


def int8_stochastic(x: Vector, layout: Layout, rng: np.random.Generator) -> Vector:
    """One byte per parameter and one scale per tensor; the mean of the rounding error is zero."""
    return _on_a_grid(x, layout, lambda y: np.floor(y + rng.random(y.size, np.float32)))


def none(x: Vector, _layout: Layout, _rng: np.random.Generator) -> Vector:
    """No residual: what an upload leaves out is lost."""
    return np.zeros_like(x)


def _on_a_grid(x: Vector, layout: Layout, to_integer: Callable[[Vector], Vector]) -> Vector:
    rounded = np.empty_like(x)
    for first, last in itertools.pairwise([0, *layout.ends]):
        part = slice(first, last)
        scale = np.abs(x[part]).max(initial=0) / np.float32(127)
        if scale:
            rounded[part] = np.clip(to_integer(x[part] / scale), -127, 127) * scale
        else:
            rounded[part] = 0
    return rounded


KINDS: dict[str, tuple[Rounding, int]] = {
    "float32": (exact, 4),
    "float16": (float16, 2),
    "int8, rounded to nearest": (int8, 1),
    "int8, rounded at random": (int8_stochastic, 1),
    "no residual": (none, 0),
}


@dataclass(frozen=True)
class RoundedErrorFeedback:
    """Error feedback whose residual is rounded after each step."""

    part_id: ClassVar[str] = "rounded_error_feedback"
    uses_moments: ClassVar[bool] = False
    compressor: Compressor
    kind: str

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        update, after = ErrorFeedback(self.compressor).step(delta, state, layout, rng, moments)
        rounding, _ = KINDS[self.kind]
        return update, {**after, "residual": rounding(after["residual"], layout, rng)}

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        raise NotImplementedError("the rounding needs the random numbers of the step")

    def give_back(self, state: State, update: Update) -> State:
        return ErrorFeedback(self.compressor).give_back(state, update)


def method(kind: str) -> Method:
    """STC with another residual on the clients; the server's has float32 in all cases."""
    plain = stc(p_up=P, p_down=P)
    assert isinstance(plain.up.feedback, ErrorFeedback)  # STC's
    feedback = RoundedErrorFeedback(plain.up.feedback.compressor, kind)
    return dataclasses.replace(plain, up=Link(feedback, plain.up.codec), name="", parameters={})


def accuracy(task: str, kind: str, seed: int, iterations: int) -> float:
    """Accuracy at the end of a run."""
    run = simulate(
        task,
        method=method(kind),
        environment=ENVIRONMENT,
        iterations=iterations,
        evaluate_every=iterations,
        seed=seed,
        workers=1,
    )
    return list(run)[-1].accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--tasks", nargs="+", default=["logistic-digits", "mlp-digits"])
    options = parser.parse_args()
    print("| residual | bytes per parameter | " + " | ".join(options.tasks) + " |")
    print("|---|---:|" + "---:|" * len(options.tasks))
    for kind, (_, nbytes) in KINDS.items():
        cells = [f"{kind}", f"{nbytes}"]
        for task in options.tasks:
            found = [
                accuracy(task, kind, seed, options.iterations) for seed in range(options.seeds)
            ]
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            cells.append(f"{statistics.mean(found):.1%} ± {100 * spread:.1f}")
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
