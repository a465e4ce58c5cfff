"""What every benchmark yields, and how it measures.

A machine has no speed of its own: others use it, it heats up, its clock changes. So whatever is
compared takes turns, and what counts is the ratio of the medians.
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
    """How much to measure."""

    quick: bool = False  # fewer repeats and smaller sizes, to see that everything works
    large: bool = False  # vectors of 10**8 values, too


@dataclass(frozen=True)
class Target:
    """Where a ratio, or our figure, is meant to be."""

    sense: Literal[">=", "<="]
    bound: float
    of: Literal["ratio", "ours"] = "ratio"

    def reached(self, value: float) -> bool:
        return value >= self.bound if self.sense == ">=" else value <= self.bound


@dataclass(frozen=True)
class Row:
    """Our figure beside that of a named peer or limit; a row without figures says why.

    ``ratio`` is ours divided by theirs. ``points`` are what a curve is drawn through.
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
        """Whether the target is; None if there is none, or nothing was measured."""
        value = None if self.target is None else getattr(self, self.target.of)
        return None if self.target is None or value is None else self.target.reached(value)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "reached": self.reached}


Rows = Iterator[Row]
Work = Callable[[], object]


def nothing() -> None:
    """What needs no preparation."""


def take_turns(
    works: dict[str, Work | tuple[Work, Work]], repeats: int, warm_up: int = 1
) -> dict[str, float]:
    """Median seconds of each work, or of the second of a pair, the first of which prepares it."""
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
    """The slope of a straight line through the logarithms: 1 is linear growth."""
    x, y = zip(*((math.log(x), math.log(y)) for x, y in points), strict=True)
    return float(np.polyfit(x, y, 1)[0])


def random_ternary(size: int, p: float, rng: np.random.Generator) -> Ternary:
    """What sparse ternary compression makes of a vector whose large values may be anywhere."""
    count = max(int(size * p), 1)
    indices = np.sort(rng.choice(size, count, replace=False, shuffle=False)).astype(np.int64)
    return Ternary(size, indices, rng.random(count) < 0.5, np.array([0.01], np.float32))
