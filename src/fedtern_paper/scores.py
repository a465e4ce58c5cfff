"""How good the seeds of one cell became: at best, and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fedtern.runs import Experiment
from fedtern_paper.results import Results


def mean(values: Sequence[float]) -> float | None:
    """The mean, if there is one."""
    return fmean(values) if values else None


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation, if there is one."""
    return stdev(values) if len(values) > 1 else None


def percent(values: Sequence[float]) -> str:
    """Shares in per cent, with their spread.

    >>> percent([0.9, 0.92]), percent([])
    ('91.0 ± 1.4 %', '–')
    """
    return f"{points(values)} %" if values else "–"


def points(values: Sequence[float]) -> str:
    """The same without the sign.

    >>> points([0.912])
    '91.2'
    """
    if not values:
        return "–"
    deviation = spread(values)
    told = "" if deviation is None else f" ± {100 * deviation:.1f}"
    return f"{100 * fmean(values):z.1f}{told}"  # z: nought has no sign


@dataclass(frozen=True)
class Score:
    """A number for each seed: the highest accuracy of its run, and the last.

    The paper shows "maximum accuracy achieved", in some captions "final".
    """

    best: tuple[float, ...] = ()
    final: tuple[float, ...] = ()

    @classmethod
    def of(cls, results: Results, cells: Sequence[Experiment]) -> Score:
        """What the finished runs among some cells came to."""
        curves = [[r.accuracy for r in rounds] for c in cells if (rounds := results.rounds(c))]
        return cls(tuple(max(curve) for curve in curves), tuple(curve[-1] for curve in curves))

    @property
    def value(self) -> float | None:
        """What is drawn and compared: the maximum, on average over the seeds."""
        return mean(self.best)

    @property
    def shown(self) -> str:
        """Both in per cent, the last in brackets.

        >>> Score((0.9,), (0.875,)).shown
        '90.0 (87.5)'
        """
        return f"{points(self.best)} ({points(self.final)})" if self.best else "–"

    def columns(self) -> dict[str, float | int | None]:
        """Both with their spread, for programs."""
        return {
            "accuracy": mean(self.best),
            "accuracy_std": spread(self.best),
            "final_accuracy": mean(self.final),
            "final_accuracy_std": spread(self.final),
            "seeds": len(self.best),
        }
