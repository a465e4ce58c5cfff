"""Interfaces of compressors, the lossless compressor, and checks that all compressors share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels import first_unsafe
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Dense, Limits, NoLimits, Sparse, Steps, Ternary, Update

MAX_MAGNITUDE = 2.0**100
"""The largest magnitude of a value that can be sent; sums of messages stay far from overflow."""

Loss = Literal["none", "unbiased", "biased"]


class Compressor(Protocol):
    """Turns a vector into an update.

    Attributes:
        part_id: a name that never changes, on the wire and on disk.
        loss: how updates differ from the vectors they are made from: not at all ("none"), only at
            random, with the vector as their expectation ("unbiased"), or systematically ("biased").

    """

    part_id: ClassVar[str]
    loss: ClassVar[Loss]

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Update:
        """Make an update that approximates ``x``.

        Raises:
            NonFiniteError: a value is NaN, infinite or beyond 2**100; the message names its tensor.

        """
        ...


@runtime_checkable
class LimitedCompressor(Protocol):
    """A compressor that states which updates it can make. All compressors of this package do."""

    def limits(self, layout: Layout) -> Limits:
        """Return the limits of the updates for a layout."""
        ...


def find_limits(part: object, layout: Layout) -> Limits:
    """Return the limits that a compressor or a feedback rule states; none if it states none."""
    return part.limits(layout) if isinstance(part, LimitedCompressor) else NoLimits()


@runtime_checkable
class SubspaceCompressor(Protocol):
    """A compressor that sends one random subspace, in which clients can train from the start."""

    def restrict(self, gradient: Vector, layout: Layout, rng: np.random.Generator) -> None:
        """Project a gradient, in place, onto the subspace that the same generator leads to."""
        ...


@runtime_checkable
class AccumulatingCompressor(Protocol):
    """A compressor that adds the residual and compresses in one pass."""

    def accumulate(
        self, delta: Vector, state: Mapping[str, Vector], layout: Layout
    ) -> tuple[Update, dict[str, Vector]]:
        """Add the residual to ``delta``, in place, and compress the sum.

        Args:
            delta: the change to send; it is changed.
            state: the vectors that the previous call returned, and the residual, if there are any.
            layout: the model's tensors.

        Returns:
            The update, and ``remember`` of it.

        """
        ...

    def remember(self, update: Update, magnitudes: Vector) -> dict[str, Vector]:
        """Return the vectors for the next call of ``accumulate``.

        Args:
            update: an update that this compressor has made.
            magnitudes: the magnitudes of the values at the update's indices before compression.

        """
        ...


@dataclass(frozen=True)
class Identity:
    """Sends all values unchanged."""

    part_id: ClassVar[str] = "identity"
    loss: ClassVar[Loss] = "none"

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Dense:
        """Return the vector itself as an update, after checking that all values are finite."""
        check_finite(x, layout)
        return Dense(x)

    def limits(self, layout: Layout) -> NoLimits:
        """Return no limits: every dense update is possible."""
        return NoLimits()


def check_finite(x: Vector, layout: Layout) -> None:
    """Raise an error that names the tensor if a value is NaN, infinite or beyond 2**100."""
    if (bad := first_unsafe(x)) >= 0:
        raise layout.non_finite_error(bad, float(x[bad]))


def check_selected(values: Vector, indices: NDArray[np.int64], layout: Layout) -> None:
    """Like ``check_finite``, given the largest values of a vector: a bad value is among them."""
    if (bad := first_unsafe(values)) >= 0:
        raise layout.non_finite_error(int(indices[bad]), float(values[bad]))


def float64_mean(values: Vector) -> np.float32:
    """Return the mean, summed in float64; zero if there are no values."""
    # Equal to values.mean(dtype=np.float64), whose overhead is larger than the sum itself.
    return np.float32(np.add.reduce(values, axis=None, dtype=np.float64) / max(values.size, 1))


def next_thresholds(update: Sparse | Ternary | Steps, magnitudes: Vector) -> Vector:
    """Estimate, for each segment, a magnitude that 1.5 times the update's entries will reach.

    The estimate is 0 for a segment with too few entries. It assumes that the number of values
    falls by a factor of e every (mean - least) above the least selected magnitude. Then 1.5 times
    as many values reach a threshold of 0.4 * (mean - least) below the least. Residuals accumulate
    just below the least, so the threshold must not be lower than that.

    Args:
        update: an update.
        magnitudes: the magnitudes of the values that the update was made from.

    """
    cuts = find_cuts(update.indices, None if isinstance(update, Sparse) else update.ends)
    segments = [magnitudes[a:b] for a, b in pairwise(cuts)]
    if isinstance(update, Ternary):
        means = update.mus.tolist()
    else:
        means = [float(float64_mean(segment)) for segment in segments]
    thresholds = [
        next_threshold(segment.size, float(segment.min()) if segment.size else 0.0, mean)
        for segment, mean in zip(segments, means, strict=True)
    ]
    return np.array(thresholds, np.float32)


def next_threshold(count: int, least: float, mean: float) -> float:
    """Like ``next_thresholds``, given the number, least and mean of a segment's magnitudes."""
    if count < 16:
        return 0.0
    # A few very large values raise the mean, but say nothing about the values near the least.
    return max(least - 0.4 * (mean - least), 0.75 * least)


def find_cuts(indices: NDArray[np.int64], ends: NDArray[np.int64] | None) -> list[int]:
    """Return where the segments' entries begin and end; ``ends`` is None for a single segment."""
    return [0, indices.size] if ends is None else [0, *np.searchsorted(indices, ends).tolist()]
