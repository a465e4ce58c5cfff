"""How long a run will take, going by runs that are finished, or else by a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from fedtern.runs import Evaluation, Experiment
from fedtern_paper.results import Results

_USUAL_BATCH = 20


@dataclass(frozen=True)
class Cost:
    """Seconds of a thread: a client's iteration, its messages of a round, and an evaluation."""

    step: float
    exchange: float
    evaluation: float

    @classmethod
    def of(cls, cell: Experiment, rounds: list[Evaluation]) -> Cost:
        """What a finished run cost, its steps as if with batches of the usual size."""
        last, cohort = rounds[-1], cell.environment.cohort_size
        seconds = dict(last.seconds)
        step = seconds.pop("train", 0.0) / (last.iteration * cohort)
        evaluation = seconds.pop("evaluate", 0.0) / len(rounds)
        exchange = sum(seconds.values()) / (last.round * cohort)
        return cls(step / _weight(cell.environment.batch_size), exchange, evaluation)


DEFAULTS: Mapping[str, Cost] = {
    "logistic-digits": Cost(0.0004, 0.0004, 0.002),
    "mlp-digits": Cost(0.0005, 0.0005, 0.002),
    "logistic-mnist": Cost(0.0006, 0.0005, 0.02),
    "lstm-fashion": Cost(0.022, 0.002, 1.4),
    "cnn-kws": Cost(0.024, 0.004, 0.4),
    "vgg11s-cifar10": Cost(0.075, 0.004, 3.2),
}
"""What docs/performance.md says of STC on its machine: two slow cores, otherwise idle."""
_UNKNOWN = DEFAULTS["lstm-fashion"]  # somebody's own task: neither the lightest nor the heaviest


@dataclass(frozen=True)
class Pace:
    """What runs of each task cost, and where that is known from."""

    costs: Mapping[str, Cost]
    runs: int = 0

    @classmethod
    def measured(cls, results: Results) -> Pace:
        """The medians of what is recorded; the table's values for tasks without a run."""
        found: dict[str, list[Cost]] = {}
        for cell, rounds in results.recorded():
            found.setdefault(cell.task, []).append(Cost.of(cell, rounds))
        own = {
            task: Cost(
                median(c.step for c in costs),
                median(c.exchange for c in costs),
                median(c.evaluation for c in costs),
            )
            for task, costs in found.items()
        }
        return cls({**DEFAULTS, **own}, sum(map(len, found.values())))

    @property
    def source(self) -> str:
        """Where times come from, for a reader."""
        if not self.runs:
            return "times from a table measured on two slow cores"
        return f"times from {self.runs} finished runs, and a table for tasks that have none"

    def seconds(self, cell: Experiment) -> float:
        """What a run takes in one thread, about."""
        cost = self.costs.get(cell.task, _UNKNOWN)
        cohort, local = cell.environment.cohort_size, cell.make_method().local_steps
        rounds = -(-cell.iterations // local)
        evaluations = min(rounds, -(-cell.iterations // cell.evaluate_every))
        steps = rounds * local * cohort * _weight(cell.environment.batch_size)
        return cost.step * steps + cost.exchange * rounds * cohort + cost.evaluation * evaluations


def _weight(batch_size: int) -> float:
    """An iteration's cost by its batch: one half of the usual is there however small it is."""
    return (1 + batch_size / _USUAL_BATCH) / 2
