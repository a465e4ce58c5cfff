"""Updates on a grid: whole multiples of powers of two.

Sums of such updates are exact in any order, so that several rounds can be merged into one update of
small integers. ``docs/format.md`` describes the arithmetic of replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels import scatter_add
from fedtern.core.layout import Vector
from fedtern.core.updates.plain import find_segments

MIN_EXPONENT = -24
"""Weights of exact replicas are multiples of 2**-24."""

MAX_EXPONENT = 22
MAX_WEIGHT = 2.0**23
"""Exact replicas hold weights below this magnitude."""

MAX_STEPS = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class Steps:
    """``steps * 2**exponent`` at ``indices``, zero elsewhere; each segment has its exponent.

    >>> Steps(5, np.array([1, 4]), np.array([1, -3]), np.array([-2])).to_dense()
    array([ 0.  ,  0.25,  0.  ,  0.  , -0.75], dtype=float32)
    """

    size: int
    indices: NDArray[np.int64]  # strictly increasing
    steps: NDArray[np.int32]  # not zero
    exponents: NDArray[np.int64]  # one per segment; zero if the segment has no entry
    ends: NDArray[np.int64] | None = None  # one past each segment; None for a single segment

    @cached_property
    def exact_values(self) -> NDArray[np.float64]:
        """The change of each index."""
        exponents = self.exponents[0]
        if self.ends is not None:
            exponents = self.exponents[find_segments(self.indices, self.ends)]
        values: NDArray[np.float64] = np.ldexp(self.steps.astype(np.float64), exponents)
        return values

    @property
    def values(self) -> Vector:
        """The change of each index in float32; exact for steps below 2**24."""
        return self.exact_values.astype(np.float32)

    @property
    def largest(self) -> int:
        """The largest number of steps, at least 1."""
        return int(np.abs(self.steps).max(initial=1))

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        out = np.zeros(self.size, np.float32)
        self.add_to(out)
        return out

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place; a ``Replica`` adds exactly instead."""
        scatter_add(out, self.indices, self.values, np.float32(scale))


def round_to_grid(weights: Vector) -> Vector:
    """Round weights to multiples of 2**-24, which changes only weights below 1/2."""
    scaled = np.ldexp(weights.astype(np.float64), -MIN_EXPONENT)
    return np.ldexp(np.rint(scaled, out=scaled), MIN_EXPONENT).astype(np.float32)


def sum_steps(updates: list[Steps]) -> Steps | None:
    """Return the sum of updates with the same segments; None if a step is too large."""
    first = updates[0]
    segments = first.exponents.size
    # In units of the smallest exponent of each segment.
    used = np.full(segments, MAX_EXPONENT + 1, np.int64)
    for update in updates:
        has_entries = _segments_in_use(update)
        np.minimum(used, update.exponents, out=used, where=has_entries)
    indices = np.concatenate([update.indices for update in updates])
    steps = np.concatenate([_steps_in_units(update, used) for update in updates])
    order = np.argsort(indices, kind="stable")
    indices = indices[order]
    starts = np.flatnonzero(np.diff(indices, prepend=-1))
    totals = np.add.reduceat(steps[order], starts) if starts.size else steps
    changed = totals != 0
    totals = totals[changed]
    if np.abs(totals).max(initial=0) > MAX_STEPS:
        return None
    total = Steps(first.size, indices[starts][changed], totals.astype(np.int32), used, first.ends)
    return Steps(
        total.size,
        total.indices,
        total.steps,
        np.where(_segments_in_use(total), used, 0),
        first.ends,
    )


def difference_in_steps(before: Vector, after: NDArray[np.float64]) -> Steps | None:
    """Return the steps from weights on the grid to exact weights; None if a step is too large."""
    scaled = np.ldexp(after - before, -MIN_EXPONENT)
    indices = np.flatnonzero(scaled)
    units = scaled[indices].astype(np.int64)
    common = int(np.bitwise_or.reduce(units)) if units.size else 0
    # The largest power of two that divides all of them.
    shift = min((common & -common).bit_length() - 1, MAX_EXPONENT - MIN_EXPONENT) if common else 0
    units >>= shift
    if np.abs(units).max(initial=0) > MAX_STEPS:
        return None
    exponent = MIN_EXPONENT + shift if common else 0
    return Steps(before.size, indices, units.astype(np.int32), np.array([exponent]))


def _segments_in_use(update: Steps) -> NDArray[np.bool_]:
    if update.ends is None:
        return np.array([update.indices.size > 0])
    cuts = np.searchsorted(update.indices, update.ends)
    return np.diff(cuts, prepend=0) > 0


def _steps_in_units(update: Steps, exponents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the steps of an update in units of other exponents, which are not larger."""
    shifts = np.maximum(update.exponents - exponents, 0)  # negative for unused segments only
    if update.ends is not None:
        shifts = shifts[find_segments(update.indices, update.ends)]
    units: NDArray[np.int64] = update.steps * np.left_shift(np.int64(1), shifts)
    return units
