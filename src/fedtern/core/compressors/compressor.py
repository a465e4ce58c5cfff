"""What a compressor promises, and the one that loses nothing."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels import first_unsafe
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Dense, Sparse, Ternary, Update

LARGEST = 2.0**100  # no sum of messages comes near overflow
Loss = Literal["none", "unbiased", "biased"]


class Compressor(Protocol):
    """Makes updates.

    ``loss`` tells how they differ from what they were made from: not at all, only by chance (their
    expectation is equal to it), or in one direction.
    """

    part_id: ClassVar[str]
    loss: ClassVar[Loss]

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Update:
        """An update close to ``x``; refuses values that are not finite, naming the tensor."""
        ...


@runtime_checkable
class Restricting(Protocol):
    """A compressor that sends one random subspace, in which clients can train from the start."""

    def restrict(self, gradient: Vector, layout: Layout, rng: np.random.Generator) -> None:
        """Make a gradient one within the subspace that the same generator leads to; in place."""
        ...


@runtime_checkable
class Accumulating(Protocol):
    """A compressor that adds up and compresses in one pass."""

    def accumulate(
        self, delta: Vector, residual: Vector | None, thresholds: Vector | None, layout: Layout
    ) -> tuple[Update, Vector]:
        """``delta += residual``, what ``compress`` makes of that, and ``thresholds_of`` it.

        ``thresholds`` are those of the step before, None if there was none; whatever they are, they
        change how long this takes and not what it gives.
        """
        ...


@dataclass(frozen=True)
class Identity:
    """Everything, as it is."""

    part_id: ClassVar[str] = "identity"
    loss: ClassVar[Loss] = "none"

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Dense:
        """The vector itself, once every value is known to be finite."""
        check_finite(x, layout)
        return Dense(x)


def check_finite(x: Vector, layout: Layout) -> None:
    """Refuse NaN, infinity and magnitudes beyond 2**100, naming the tensor."""
    if (bad := first_unsafe(x)) >= 0:
        raise layout.refuse(bad, float(x[bad]))


def check_kept(values: Vector, kept: NDArray[np.int64], layout: Layout) -> None:
    """Like ``check_finite`` on a vector, given its largest values: a bad one is among them."""
    if (bad := first_unsafe(values)) >= 0:
        raise layout.refuse(int(kept[bad]), float(values[bad]))


def mean_of(values: Vector) -> np.float32:
    """The mean, added up in float64; zero where there is nothing."""
    # As values.mean(dtype=np.float64), which takes longer to get there than to do it.
    return np.float32(np.add.reduce(values, axis=None, dtype=np.float64) / max(values.size, 1))


def thresholds_of(update: Sparse | Ternary, magnitudes: Vector) -> Vector:
    """For each segment a magnitude that about half as many again as are in the update may reach.

    0 where there is too little to tell. It follows from the magnitudes that the update was made of:
    where their number falls off by a factor e every (mean - least), it is 1.5 times as large
    0.4 of that below the least. Residuals gather there, hence no further.
    """
    ends = update.ends if isinstance(update, Ternary) else None
    means = update.mus.tolist() if isinstance(update, Ternary) else [float(mean_of(magnitudes))]
    if ends is None:
        return np.array([_threshold_of(magnitudes, means[0])], np.float32)
    cuts = pairwise([0, *np.searchsorted(update.indices, ends).tolist()])
    parts = zip(means, cuts, strict=True)
    return np.array([_threshold_of(magnitudes[a:b], mean) for mean, (a, b) in parts], np.float32)


def _threshold_of(magnitudes: Vector, mean: float) -> float:
    least = float(np.minimum.reduce(magnitudes)) if magnitudes.size >= 16 else 0.0
    # A few very large ones say nothing about those around the least.
    return max(least - 0.4 * (mean - least), 0.75 * least)
