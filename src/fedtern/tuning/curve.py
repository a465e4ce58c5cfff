"""The learning curve of a candidate: the best quality so far against its cost."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from fedtern.data.metric_spec import MetricSpec
from fedtern.runs import Evaluation

MINIMISE = {"bytes": (1.0, 1.0), "bytes-up": (1.0, 0.0), "bytes-down": (0.0, 1.0)}
"""What can be minimised: the factors of the bytes that a client uploads and downloads."""


@dataclass(frozen=True)
class Cost:
    """What a candidate costs until an evaluation, in bytes per client.

    >>> Cost(up=1.0, down=0.1).describe()
    'bytes up + 0.1 x bytes down'
    """

    up: float = 1.0
    down: float = 1.0

    def of(self, evaluation: Evaluation) -> float:
        """Return the weighted sum of the bytes up and down per client."""
        return self.up * evaluation.up_bytes_mean + self.down * evaluation.down_bytes_mean

    def describe(self) -> str:
        """Return the sum in words."""
        return " + ".join(
            f"bytes {direction}" if factor == 1 else f"{factor:g} x bytes {direction}"
            for direction, factor in (("up", self.up), ("down", self.down))
            if factor
        )


class Point(NamedTuple):
    """One evaluation.

    Attributes:
        cost: Its cost.
        value: Its quality; see ``MetricSpec.quality``.

    """

    cost: float
    value: float


@dataclass(frozen=True)
class Curve:
    """Evaluations of a candidate in the order of its training.

    Values are qualities: higher is better for every metric. Costs never decrease, and what counts
    is the best value so far. Between two evaluations, the curve is a straight line, so that the
    distance of the evaluations favours no candidate.

    >>> curve = Curve((Point(100, 0.5), Point(200, 0.7), Point(300, 0.6)))
    >>> curve.best, curve.spent, curve.cost_of(0.6), curve.cost_of(0.8)
    (0.7, 300, 150.0, None)
    """

    points: tuple[Point, ...] = ()

    @classmethod
    def of(cls, evaluations: Iterable[Evaluation], metric: MetricSpec, cost: Cost) -> Curve:
        """Return the curve of a run."""
        return cls(
            tuple(Point(cost.of(each), metric.quality(each.primary[1])) for each in evaluations)
        )

    @property
    def best(self) -> float:
        """The best value; minus infinity if there is none."""
        return max((point.value for point in self.points), default=-math.inf)

    @property
    def spent(self) -> float:
        """The cost so far."""
        return self.points[-1].cost if self.points else 0.0

    def cost_of(self, value: float) -> float | None:
        """Return the cost at which the curve first reaches a value; None if it does not.

        For a value below the first evaluation, that is the cost of this evaluation.
        """
        highest = _running_best(self.points)
        reached = bisect_left(highest, value, key=lambda point: point.value)
        if reached == len(highest):
            return None
        after = highest[reached]
        before = highest[reached - 1] if reached else after
        if not math.isfinite(before.value) or after.value == before.value:
            return after.cost
        share = (value - before.value) / (after.value - before.value)
        return before.cost + share * (after.cost - before.cost)

    @property
    def noise(self) -> float:
        """The standard deviation of the values around the curve's trend.

        It is that of the second differences, which a straight trend does not change, over the
        later half of the evaluations; 0 with fewer than three.

        >>> Curve(tuple(Point(i, i) for i in range(9))).noise
        0.0
        """
        values = [point.value for point in self.points[len(self.points) // 2 :]]
        differences = [b - a for a, b in pairwise(values) if math.isfinite(b - a)]
        second = [b - a for a, b in pairwise(differences)]
        # The variance of a - 2b + c is six times that of each value.
        return math.sqrt(sum(d * d for d in second) / (6 * len(second))) if second else 0.0


def _running_best(points: Sequence[Point]) -> list[Point]:
    """Return the points with the best value so far."""
    values = accumulate((point.value for point in points), max)
    return [Point(point.cost, value) for point, value in zip(points, values, strict=True)]
