"""Expected duration of runs, from finished runs or else from a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from fedtern.runs import Evaluation, Experiment
from fedtern_paper.published import CNN, LOGISTIC, LSTM, VGG
from fedtern_paper.results import Results

_BASE_BATCH = 20


@dataclass(frozen=True)
class Cost:
    """Seconds of one thread: for a client's iteration, its messages of a round, an evaluation.

    ``step`` is for batches of the base configuration.
    """

    step: float
    exchange: float
    evaluation: float

    @classmethod
    def of(cls, cell: Experiment, evaluations: list[Evaluation]) -> Cost:
        """Return the cost of a finished run."""
        last = evaluations[-1]
        cohort = cell.environment.cohort_size
        seconds = dict(last.seconds)
        step = seconds.pop("train", 0.0) / (last.iteration * cohort)
        evaluation = seconds.pop("evaluate", 0.0) / len(evaluations)
        exchange = sum(seconds.values()) / (last.round * cohort)
        return cls(step / _batch_factor(cell.environment.batch_size), exchange, evaluation)


DEFAULTS: Mapping[str, Cost] = {
    "logistic-digits": Cost(0.0004, 0.0004, 0.002),
    "mlp-digits": Cost(0.0005, 0.0005, 0.002),
    LOGISTIC: Cost(0.0006, 0.0005, 0.02),
    LSTM: Cost(0.022, 0.002, 1.4),
    CNN: Cost(0.024, 0.004, 0.4),
    VGG: Cost(0.075, 0.004, 3.2),
}
"""Costs of STC, measured on the machine of docs/performance.md: two slow cores, otherwise idle."""

_UNKNOWN = DEFAULTS[LSTM]  # for other tasks: neither the cheapest nor the most expensive


@dataclass(frozen=True)
class RunTimes:
    """Costs of each task, and the number of finished runs that they come from."""

    costs: Mapping[str, Cost]
    runs: int = 0

    @classmethod
    def measured(cls, results: Results) -> RunTimes:
        """Return the medians over finished runs; for tasks without runs, the table's values."""
        by_task: dict[str, list[Cost]] = {}
        for cell, evaluations in results.finished_runs():
            by_task.setdefault(cell.task, []).append(Cost.of(cell, evaluations))
        medians = {
            task: Cost(
                median(cost.step for cost in costs),
                median(cost.exchange for cost in costs),
                median(cost.evaluation for cost in costs),
            )
            for task, costs in by_task.items()
        }
        return cls({**DEFAULTS, **medians}, sum(map(len, by_task.values())))

    @property
    def source(self) -> str:
        """Where the times come from, in words."""
        if not self.runs:
            return "times from a table, measured on two slow cores"
        runs = "1 finished run" if self.runs == 1 else f"{self.runs} finished runs"
        return f"times from {runs}, and from a table for other tasks"

    def seconds(self, cell: Experiment) -> float:
        """Return the expected duration of a run in one thread."""
        cost = self.costs.get(cell.task, _UNKNOWN)
        cohort = cell.environment.cohort_size
        local_steps = cell.make_method().local_steps
        rounds = -(-cell.iterations // local_steps)
        evaluations = min(rounds, -(-cell.iterations // cell.evaluate_every))
        steps = rounds * local_steps * cohort * _batch_factor(cell.environment.batch_size)
        return cost.step * steps + cost.exchange * rounds * cohort + cost.evaluation * evaluations


def _batch_factor(batch_size: int) -> float:
    """Return the cost of an iteration relative to the base batch size; half of it is constant."""
    return (1 + batch_size / _BASE_BATCH) / 2
