"""Search for the method's parameters that need the fewest bytes until a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from fedtern.core.errors import FedternError, RunError
from fedtern.data.environment import Environment
from fedtern.data.metric_spec import MetricSpec
from fedtern.privacy import PrivacySettings
from fedtern.runs import Evaluation, Experiment, RunDirectory, open_run
from fedtern.training.devices import check_device
from fedtern.training.tasks import get_task
from fedtern.transports.local import Federation, train_run
from fedtern.transports.local.launch import check_task
from fedtern.transports.local.simulation import torch_threads
from fedtern.tuning.curve import Curve
from fedtern.tuning.elimination import drop
from fedtern.tuning.grid import Grid
from fedtern.tuning.plan import Plan
from fedtern.tuning.result import REPEATED, Candidate, Tuning, label

OUT = Path("tuning")
"""Default directory for the runs of a search."""

_TOO_EXPENSIVE = 2.0  # times the lowest cost until a given target


class TuningStopped(FedternError):
    """A search was interrupted; with the same arguments it continues."""


class Progress(Protocol):
    """What a search tells about the training of one candidate in one rung."""

    def __enter__(self) -> Self:
        """Start; called before the training."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """End; called after the training, also if it failed."""
        ...

    def round_finished(self, federation: Federation) -> None:
        """Take note of a round."""
        ...

    def evaluated(self, evaluation: Evaluation) -> None:
        """Take note of an evaluation."""
        ...


ShowProgress = Callable[[str, int], Progress]
"""Takes the name of a run and the iteration at which it pauses."""


class _Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def round_finished(self, federation: Federation) -> None:
        pass

    def evaluated(self, evaluation: Evaluation) -> None:
        pass


def tune(
    task: str,
    method: str | Mapping[str, Any] = "stc",
    *,
    local_steps: Sequence[int] | None = None,
    p_up: Sequence[float] | None = None,
    p_down: Sequence[float] | None = None,
    environment: Environment | None = None,
    minimise: str = "bytes",
    down_weight: float | None = None,
    target: float | None = None,
    within: float | None = None,
    budget: int | None = None,
    rungs: int | None = None,
    seeds: int = 2,
    iterations: int | None = None,
    learning_rate: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    evaluate_every: int | None = None,
    seed: int = 0,
    privacy: PrivacySettings | None = None,
    data_dir: str | Path | None = None,
    out: str | Path = OUT,
    device: str = "cpu",
    memory_bytes: int | None = None,
    workers: int | None = None,
    threads: int = 1,
) -> Tuning:
    """Find the parameters of a method that need the fewest bytes per client until a target.

    All combinations of values train for a short time. The best third continues for three times as
    many iterations, and so on; see ``fedtern.tuning.elimination.drop`` for the comparison. Runs
    are kept in ``out``: an interrupted search continues, and a finished one is not repeated.

    Args:
        task: Name of a task; ``fedtern.training.register_task`` adds your own.
        method: Method with fixed parameters, such as ``"stc:scope=tensor"``.
        local_steps: Local iterations between two uploads; by default 1, 5 and 25.
        p_up: Shares of values in an upload; by default 1/25, 1/100 and 1/400.
        p_down: Shares of values in a broadcast; by default, for each ``p_up``, the same share and
            the share times the participation.
        environment: Clients and their data; by default the paper's base configuration.
        minimise: "bytes" per client, "bytes-up" or "bytes-down".
        down_weight: Factor of the bytes down in "bytes"; by default 1.
        target: Value of the task's metric to reach; by default ``within`` below the best value that
            any candidate has reached.
        within: Distance of that target: percentage points of accuracy, or percent of the value of
            another metric; by default 2.
        budget: Local iterations of the longest runs; by default half of ``iterations``.
        rungs: Number of steps of the search; by default 3, or 2 if the first would be too short.
        seeds: Number of seeds for the two cheapest candidates, which show the noise.
        iterations: Local iterations of a full run; by default the task's.
        learning_rate: Learning rate of SGD; by default the task's.
        momentum: Momentum of SGD; by default the task's.
        weight_decay: Weight decay of SGD; by default the task's.
        evaluate_every: Iterations between evaluations; by default a tenth of the first rung.
        seed: Random seed.
        privacy: Differential privacy of the clients.
        data_dir: Directory of the datasets.
        out: Directory for the runs.
        device: Device of torch to train on.
        memory_bytes: Memory for residuals and momentum; the rest is kept on disk.
        workers: Processes that train at the same time; by default as many as are useful.
        threads: Threads of torch; above 1, only one process trains.

    Returns:
        The recommended method and what is known about all candidates.

    Raises:
        ValueError: A name is unknown, a value is out of range, the budget is too small, or the
            method has no parameter to search.
        StoreError: A directory in ``out`` holds other files.

    >>> import tempfile
    >>> found = tune("logistic-digits", local_steps=[1], p_up=[1 / 5, 1 / 20], target=0.5,
    ...              iterations=90, budget=90, out=tempfile.mkdtemp())
    >>> len(found.candidates), found.reached, found.method.partition(":")[0]
    (4, True, 'stc')
    """
    plan = Plan.of(
        task,
        method,
        Grid(local_steps, p_up, p_down),
        environment,
        minimise=minimise,
        down_weight=down_weight,
        target=target,
        within=within,
        budget=budget,
        rungs=rungs,
        seeds=seeds,
        iterations=iterations,
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        evaluate_every=evaluate_every,
        seed=seed,
        privacy=privacy,
    )
    return search(
        plan,
        data_dir,
        out,
        device=device,
        memory_bytes=memory_bytes,
        workers=workers,
        threads=threads,
    )


def search(
    plan: Plan,
    data_dir: str | Path | None = None,
    out: str | Path = OUT,
    *,
    device: str = "cpu",
    memory_bytes: int | None = None,
    workers: int | None = None,
    threads: int = 1,
    checkpoint_seconds: float = 30.0,
    command: str = "",
    stopped: Callable[[], bool] = lambda: False,
    progress: ShowProgress = lambda _name, _iterations: _Silent(),
) -> Tuning:
    """Carry out a search; see ``tune``.

    Args:
        plan: What to search.
        data_dir: Directory of the datasets.
        out: Directory for the runs.
        device: Device of torch to train on.
        memory_bytes: Memory for residuals and momentum; the rest is kept on disk.
        workers: Processes that train at the same time.
        threads: Threads of torch; above 1, only one process trains.
        checkpoint_seconds: Least time between two checkpoints.
        command: Command line of the search, for the run directories.
        stopped: Called before each round; if it returns True, the search is interrupted.
        progress: Makes what shows the training of a candidate.

    Raises:
        ValueError: The target is impossible, or the data cannot be split.
        TuningStopped: ``stopped`` returned True.

    """
    metric = get_task(plan.experiments[0].task).objective.primary
    if plan.target is not None and metric.is_share and not 0 < plan.target <= 1:
        raise ValueError(
            f"target must be an {metric.name} in (0, 1], got {plan.target:g}; write 0.9 for 90 %"
        )
    how = {
        "device": check_device(device),
        "memory_bytes": memory_bytes,
        "workers": 0 if threads > 1 else workers,
        "checkpoint_seconds": checkpoint_seconds,
        "stopped": stopped,
    }
    runs = _Runs(data_dir, Path(out), command, how, stopped, progress)
    with torch_threads(threads):
        return _Search(plan, metric, runs).run()


@dataclass(frozen=True)
class _Runs:
    """The runs of a search, and how they are trained.

    Attributes:
        data_dir: Directory of the datasets.
        out: Directory of the run directories.
        command: Command line of the search.
        how: Arguments of ``train_run``.
        stopped: Whether the search is to be interrupted.
        progress: Makes what shows the training of a run.

    """

    data_dir: str | Path | None
    out: Path
    command: str
    how: Mapping[str, Any]
    stopped: Callable[[], bool]
    progress: ShowProgress

    def evaluations(
        self,
        experiment: Experiment,
        iterations: int,
        name: str,
        is_enough: Callable[[Evaluation], bool],
    ) -> list[Evaluation]:
        """Return the evaluations of a run up to an iteration; train it as far as is missing.

        Args:
            experiment: The experiment of the run.
            iterations: The iteration at which it pauses.
            name: Name of the run in the progress.
            is_enough: Whether it pauses after an evaluation before that iteration.

        Raises:
            TuningStopped: The search was interrupted.
            RunError: The run has no evaluation.

        """

        def is_last(evaluation: Evaluation) -> bool:
            return evaluation.iteration >= iterations or is_enough(evaluation)

        run = self._open(experiment)
        # Those of an earlier search may go further; this one does not look at them.
        found = _up_to(run.evaluations(), is_last)
        if run.is_finished() or (found and is_last(found[-1])):
            return found
        with self.progress(name, iterations) as shown:
            self._train(run, shown, is_last)
        found = _up_to(run.evaluations(), is_last)
        if not found:
            raise RunError(f"{run.path} has no evaluations: no round was possible")
        return found

    def _train(
        self, run: RunDirectory, shown: Progress, is_last: Callable[[Evaluation], bool]
    ) -> None:
        training = train_run(run, self.data_dir, progress=shown.round_finished, **self.how)
        with closing(training):  # which writes a checkpoint
            for evaluation in training:
                shown.evaluated(evaluation)
                # After the last evaluation of a full run, the run is finished first.
                if evaluation.iteration < run.experiment.iterations and is_last(evaluation):
                    return
        if not run.is_finished():
            raise TuningStopped(f"stopped; the same command continues (runs are in {self.out})")

    def _open(self, experiment: Experiment) -> RunDirectory:
        run = open_run(experiment, self.out, command=self.command)
        if run.recorded_digest() is not None:
            check_task(run, self.data_dir)
        return run

    def discard_checkpoint(self, experiment: Experiment) -> None:
        """Remove the checkpoint of a run that does not continue; its evaluations stay."""
        self._open(experiment).checkpoint_path.unlink(missing_ok=True)


def _up_to(
    evaluations: Sequence[Evaluation], is_last: Callable[[Evaluation], bool]
) -> list[Evaluation]:
    """Return the evaluations up to the first that satisfies a condition, or all."""
    found = next((i for i, each in enumerate(evaluations) if is_last(each)), len(evaluations))
    return list(evaluations[: found + 1])


class _Search:
    """The state of a search.

    Candidates are known by their position in the plan. Values of the metric are qualities: higher
    is better, as in ``Curve``.

    Args:
        plan: What to search.
        metric: The primary metric of the task.
        runs: The runs of the candidates.

    """

    def __init__(self, plan: Plan, metric: MetricSpec, runs: _Runs) -> None:
        self._plan = plan
        self._metric = metric
        self._runs = runs
        self._target = math.inf if plan.target is None else metric.quality(plan.target)
        self._curves: dict[int, Curve] = {}
        self._last: dict[int, Evaluation] = {}
        self._repetitions: dict[int, tuple[Curve, ...]] = {}
        self._dropped: dict[int, int] = {}

    def run(self) -> Tuning:
        """Carry out the search."""
        left = list(range(len(self._plan.experiments)))
        for number, rung in enumerate(self._plan.rungs, 1):
            title = f"rung {number} of {len(self._plan.rungs)}"
            for position, i in enumerate(left, 1):
                self._train(i, rung.iterations, f"{title}, run {position} of {len(left)}")
            if number < len(self._plan.rungs):
                curves = {i: self._curves[i] for i in left}
                for i in drop(curves, rung.keep, self._target, self._distance(curves.values())):
                    left.remove(i)
                    self._dropped[i] = number
                    self._runs.discard_checkpoint(self._plan.experiments[i])
        if self._plan.target is None:
            best = max(curve.best for curve in self._curves.values())
            self._target = best - self._distance(self._curves.values())
        ranked = self._ranked()
        while (unrepeated := self._next_to_repeat(ranked)) is not None:
            self._repeat(unrepeated)
            ranked = self._ranked()
        target = self._metric.value_of_quality(self._target)
        return Tuning(self._plan, self._metric, target, tuple(self._candidate(i) for i in ranked))

    def _train(self, i: int, iterations: int, title: str) -> None:
        experiment = self._plan.experiments[i]
        found = self._runs.evaluations(
            experiment,
            iterations,
            f"{title}: {self._label(i)}",
            self._has_reached_or_lost(i),
        )
        self._last[i] = found[-1]
        self._curves[i] = self._curve(found)

    def _has_reached_or_lost(self, i: int) -> Callable[[Evaluation], bool]:
        """Return whether a candidate needs no more training: only if the target was given."""
        others = [curve.cost_of(self._target) for j, curve in self._curves.items() if j != i]
        lowest = min((cost for cost in others if cost is not None), default=math.inf)

        def is_enough(evaluation: Evaluation) -> bool:
            reached = self._curve([evaluation]).best >= self._target
            return reached or self._plan.cost.of(evaluation) > _TOO_EXPENSIVE * lowest

        return is_enough

    def _next_to_repeat(self, ranked: Sequence[int]) -> int | None:
        """Return the first of the cheapest candidates that has not been repeated."""
        if self._plan.seeds == 1:
            return None
        reached = [i for i in ranked if self._candidate(i).cost is not None]
        return next((i for i in reached[:REPEATED] if i not in self._repetitions), None)

    def _repeat(self, i: int) -> None:
        """Train a candidate with further seeds until the target."""
        experiment = self._plan.experiments[i]
        curves = []
        for number in range(1, self._plan.seeds):
            repetition = replace(experiment, seed=experiment.seed + number)
            found = self._runs.evaluations(
                repetition,
                self._plan.budget,
                f"seed {repetition.seed}: {self._label(i)}",
                lambda evaluation: self._curve([evaluation]).best >= self._target,
            )
            self._runs.discard_checkpoint(repetition)
            curves.append(self._curve(found))
        self._repetitions[i] = tuple(curves)

    def _ranked(self) -> list[int]:
        """Return all candidates: those that reached the target by cost, others by quality."""

        def rank(i: int) -> tuple[bool, float]:
            cost = self._candidate(i).cost
            return (True, -self._curves[i].best) if cost is None else (False, cost)

        return sorted(self._curves, key=rank)

    def _candidate(self, i: int) -> Candidate:
        return Candidate(
            self._plan.experiments[i],
            self._last[i],
            self._curves[i],
            self._repetitions.get(i, ()),
            self._dropped.get(i),
            self._target,
        )

    def _curve(self, evaluations: Sequence[Evaluation]) -> Curve:
        return Curve.of(evaluations, self._metric, self._plan.cost)

    def _distance(self, curves: Iterable[Curve]) -> float:
        """Return the distance of a chosen target below the best quality."""
        best = max(curve.best for curve in curves)
        unit = 1.0 if self._metric.is_share or not math.isfinite(best) else abs(best)
        return self._plan.within / 100 * unit

    def _label(self, i: int) -> str:
        return label(self._plan.experiments[i].method, self._plan.searched)
