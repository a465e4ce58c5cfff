"""Rows of results, and measurement by turns.

The speed of a machine varies with load, heat and clock. So everything that is compared takes turns,
and the result is the ratio of the medians.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from fedtern.core.updates import Ternary

VGG11S = 865_482
P = 1 / 400


@dataclass(frozen=True)
class Options:
    """Amount of work."""

    quick: bool = False  # fewer repeats and smaller sizes, to check that everything works
    large: bool = False  # add vectors of 10**8 values


@dataclass(frozen=True)
class Target:
    """Bound for a ratio, or for our number."""

    sense: Literal[">=", "<="]
    bound: float
    of: Literal["ratio", "ours"] = "ratio"

    def reached(self, value: float) -> bool:
        return value >= self.bound if self.sense == ">=" else value <= self.bound


@dataclass(frozen=True)
class Row:
    """Our number and that of a named peer or limit; a row without numbers says why in its note.

    ``ratio`` is ours divided by theirs. ``points`` are the points of a curve.
    """

    name: str
    peer: str = ""
    ours: float | None = None
    theirs: float | None = None
    unit: str = ""
    target: Target | None = None
    note: str = ""
    points: tuple[tuple[float, float], ...] = ()

    @property
    def ratio(self) -> float | None:
        if self.ours is None or not self.theirs:
            return None
        return self.ours / self.theirs

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None without a target or a measurement."""
        value = None if self.target is None else getattr(self, self.target.of)
        return None if self.target is None or value is None else self.target.reached(value)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "reached": self.reached}


Rows = Iterator[Row]
Work = Callable[[], object]


def nothing() -> None:
    """No preparation."""


def take_turns(
    works: dict[str, Work | tuple[Work, Work]], repeats: int, warm_up: int = 1
) -> dict[str, float]:
    """Median seconds of each task. In a pair, the first prepares and only the second is timed."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(warm_up + repeats):
        for name, work in works.items():
            prepare, run = work if isinstance(work, tuple) else (nothing, work)
            prepare()
            begin = time.perf_counter()
            run()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Slope of a line through the logarithms: 1 is linear growth."""
    x, y = zip(*((math.log(x), math.log(y)) for x, y in points), strict=True)
    return float(np.polyfit(x, y, 1)[0])


def random_ternary(size: int, p: float, rng: np.random.Generator) -> Ternary:
    """Random ternary update with uniformly distributed positions."""
    count = max(int(size * p), 1)
    indices = np.sort(rng.choice(size, count, replace=False, shuffle=False)).astype(np.int64)
    return Ternary(size, indices, rng.random(count) < 0.5, np.array([0.01], np.float32))
