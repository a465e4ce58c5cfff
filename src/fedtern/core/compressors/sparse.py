"""Compressors that keep few values, chosen by magnitude."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.compressors.compressor import (
    MAX_MAGNITUDE,
    Loss,
    check_finite,
    check_selected,
    find_cuts,
    float64_mean,
    next_threshold,
    next_thresholds,
)
from fedtern.core.kernels import add_top_k, summarize, top_k
from fedtern.core.layout import Layout, Scope, Vector, check_scope
from fedtern.core.updates import Sparse, Steps, Ternary, Update
from fedtern.core.updates.limits import EntryLimits
from fedtern.core.updates.steps import MAX_EXPONENT, MIN_EXPONENT

LATER: Mapping[str, bool] = {"later": True}
"""Metadata of a field that a part did not have at first; see ``describe_part``."""

EMPTY_STATE: Mapping[str, Vector] = {}


@dataclass(frozen=True)
class TopK:
    """The k largest magnitudes with their values (Aji and Heafield, 2017).

    Args:
        p: the share of values that are kept: k = max(floor(n p), 1).
        scope: whether k is chosen for the whole model or for each tensor.

    """

    part_id: ClassVar[str] = "top_k"
    p: float
    scope: Scope = "model"
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_rate(self.p))
        check_scope(self.scope)

    def count(self, size: int) -> int:
        """Return k for a segment."""
        return count_kept(size, self.p)

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Sparse:
        """Keep exactly min(k, nonzeros) entries of each segment."""
        indices, values = select_largest(x, self.count, self.scope, layout)
        return Sparse(x.size, indices, values)

    def limits(self, layout: Layout) -> EntryLimits:
        """Return limits of the number of non-zeros in each segment."""
        return entry_limits(self.count, self.scope, layout)

    def accumulate(
        self, delta: Vector, state: Mapping[str, Vector], layout: Layout
    ) -> tuple[Sparse, dict[str, Vector]]:
        """Add the residual and compress the sum; see ``AccumulatingCompressor``."""
        indices, values = select_largest(delta, self.count, self.scope, layout, state)
        update = Sparse(delta.size, indices, values)
        return update, self.remember(update, np.abs(values))

    def remember(self, update: Update, magnitudes: Vector) -> dict[str, Vector]:
        """Return estimated thresholds; see ``AccumulatingCompressor``."""
        return remember_thresholds(update, magnitudes)


@dataclass(frozen=True)
class SparseTernary:
    """The signs of the k largest magnitudes, times their mean magnitude.

    Sattler et al. (2019), Algorithm 1: k = max(floor(n p), 1), mu = mean of the magnitudes kept.

    Args:
        p: the share of values that are kept.
        scope: whether k and mu are computed for the whole model or for each tensor.
        least: the smallest k, or all values if there are fewer.

    >>> x = np.float32([0, 3, -1, 0.5, -5, 0])
    >>> SparseTernary(p=1 / 3).compress(x, Layout.flat(6), np.random.default_rng(0)).to_dense()
    array([ 0.,  4.,  0.,  0., -4.,  0.], dtype=float32)
    """

    part_id: ClassVar[str] = "sparse_ternary"
    p: float
    scope: Scope = "model"
    least: int = field(default=1, metadata=LATER)
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_rate(self.p))
        check_scope(self.scope)
        object.__setattr__(self, "least", check_number("least", self.least, 1))

    def count(self, size: int) -> int:
        """Return k for a segment."""
        return count_kept(size, self.p, self.least)

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Ternary:
        """Ternarise the values that ``TopK`` keeps; zeros give an empty update."""
        return self.accumulate(x, EMPTY_STATE, layout)[0]

    def limits(self, layout: Layout) -> EntryLimits:
        """Return limits of the number of non-zeros in each segment."""
        return entry_limits(self.count, self.scope, layout)

    def accumulate(
        self, delta: Vector, state: Mapping[str, Vector], layout: Layout
    ) -> tuple[Ternary, dict[str, Vector]]:
        """Add the residual and compress the sum; see ``AccumulatingCompressor``."""
        indices, values = find_largest(delta, self.count, self.scope, layout, state)
        signs = np.empty(values.size, np.bool_)
        ends = None if self.scope == "model" else layout.ends
        mus = []
        thresholds = []
        for a, b in pairwise(find_cuts(indices, ends)):
            unsafe, least, total = summarize(values[a:b], signs[a:b])
            if unsafe >= 0:
                raise layout.non_finite_error(int(indices[a + unsafe]), float(values[a + unsafe]))
            # Unlike the paper: if there are fewer than k non-zeros, mu is their mean and not their
            # sum divided by k. So compressing an update a second time does not change it.
            mu = float(np.float32(total / max(b - a, 1)))
            mus.append(mu)
            thresholds.append(next_threshold(b - a, least, mu))
        update = Ternary(layout.size, indices, signs, np.array(mus, np.float32), ends)
        return update, {"thresholds": np.array(thresholds, np.float32)}

    def remember(self, update: Update, magnitudes: Vector) -> dict[str, Vector]:
        """Return estimated thresholds; see ``AccumulatingCompressor``."""
        return remember_thresholds(update, magnitudes)


@dataclass(frozen=True)
class SparseSteps:
    """The signs of the k largest magnitudes, times a power of two near their mean magnitude.

    Like ``SparseTernary``, with a magnitude on a grid. Sums of updates are then small integers.
    The power of two of the previous update is kept while it is within a factor of 2**0.75 of the
    mean, so that successive updates mostly have the same one.

    Args:
        p: the share of values that are kept.
        scope: whether k and the power are computed for the whole model or for each tensor.
        least: the smallest k, or all values if there are fewer.

    >>> x = np.float32([0, 3, -1, 0.5, -5.5, 0])
    >>> SparseSteps(p=1 / 3).compress(x, Layout.flat(6), np.random.default_rng(0)).to_dense()
    array([ 0.,  4.,  0.,  0., -4.,  0.], dtype=float32)
    """

    part_id: ClassVar[str] = "sparse_steps"
    p: float
    scope: Scope = "model"
    least: int = field(default=1, metadata=LATER)
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_rate(self.p))
        check_scope(self.scope)
        object.__setattr__(self, "least", check_number("least", self.least, 1))

    def count(self, size: int) -> int:
        """Return k for a segment."""
        return count_kept(size, self.p, self.least)

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Steps:
        """Keep the values that ``TopK`` keeps; zeros give an empty update."""
        indices, values = select_largest(x, self.count, self.scope, layout)
        return self._to_steps(indices, values, None, layout)

    def limits(self, layout: Layout) -> EntryLimits:
        """Return limits of the number of non-zeros in each segment."""
        return entry_limits(self.count, self.scope, layout)

    def accumulate(
        self, delta: Vector, state: Mapping[str, Vector], layout: Layout
    ) -> tuple[Steps, dict[str, Vector]]:
        """Add the residual and compress the sum; see ``AccumulatingCompressor``."""
        indices, values = select_largest(delta, self.count, self.scope, layout, state)
        update = self._to_steps(indices, values, state.get("exponents"), layout)
        return update, self.remember(update, np.abs(values))

    def remember(self, update: Update, magnitudes: Vector) -> dict[str, Vector]:
        """Return estimated thresholds and the exponents; see ``AccumulatingCompressor``."""
        if not isinstance(update, Steps):
            return {}
        exponents = update.exponents.astype(np.float32)
        return {**remember_thresholds(update, magnitudes), "exponents": exponents}

    def _to_steps(
        self, indices: NDArray[np.int64], values: Vector, previous: Vector | None, layout: Layout
    ) -> Steps:
        ends = layout.segments(self.scope)
        cuts = [0, *np.searchsorted(indices, ends).tolist()]
        exponents = np.zeros(ends.size, np.int64)
        for segment, (a, b) in enumerate(pairwise(cuts)):
            if a < b:
                mean = float(float64_mean(np.abs(values[a:b])))
                last = None if previous is None else int(previous[segment])
                exponents[segment] = _choose_exponent(mean, last)
        steps = np.where(values > 0, np.int32(1), np.int32(-1))
        return Steps(
            layout.size, indices, steps, exponents, None if self.scope == "model" else ends
        )


_HYSTERESIS = 2.0**0.75


def _choose_exponent(mean: float, previous: int | None) -> int:
    """Return the exponent of the power of two nearest to a mean, or the previous one if near."""
    if previous is not None and 1 / _HYSTERESIS <= math.ldexp(mean, -previous) <= _HYSTERESIS:
        return previous
    fraction, exponent = math.frexp(mean)
    nearest = exponent if fraction * fraction >= 0.5 else exponent - 1
    return min(max(nearest, MIN_EXPONENT), MAX_EXPONENT)


@dataclass(frozen=True)
class SparseBinary:
    """The largest positive or the largest negative values, at their mean (Sattler et al., 2018).

    Of the k highest and the k lowest values of each segment, it keeps those with the larger mean
    magnitude.

    Args:
        p: the share of values that are kept: k = max(floor(n p), 1).
        scope: whether k and the mean are computed for the whole model or for each tensor.

    >>> x = np.float32([0, 3, -1, 0.5, -5, -4])
    >>> SparseBinary(p=1 / 3).compress(x, Layout.flat(6), np.random.default_rng(0)).to_dense()
    array([ 0. ,  0. ,  0. ,  0. , -4.5, -4.5], dtype=float32)
    """

    part_id: ClassVar[str] = "sparse_binary"
    p: float
    scope: Scope = "model"
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_rate(self.p))
        check_scope(self.scope)

    def count(self, size: int) -> int:
        """Return k for a segment."""
        return count_kept(size, self.p)

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Ternary:
        """Keep values of one sign in each segment; zeros give an empty update."""
        check_finite(x, layout)
        positives = np.maximum(x, 0)
        negatives = np.minimum(x, 0)
        ends = layout.segments(self.scope)
        indices = [np.empty(0, np.int64)]
        signs = [np.empty(0, np.bool_)]
        mus = []
        for start, end in pairwise([0, *ends.tolist()]):
            k = self.count(end - start)
            highest = top_k(positives[start:end], k) + start
            lowest = top_k(negatives[start:end], k) + start
            # The means are over k values, even if fewer have the sign; so it is enough to compare
            # the sums.
            high_sum = np.abs(x[highest]).sum(dtype=np.float64)
            low_sum = np.abs(x[lowest]).sum(dtype=np.float64)
            positive = bool(high_sum >= low_sum)
            kept = highest if positive else lowest
            indices.append(kept)
            signs.append(np.full(kept.size, positive))
            mus.append(float64_mean(np.abs(x[kept])))
        return Ternary(
            x.size,
            np.concatenate(indices),
            np.concatenate(signs),
            np.array(mus, np.float32),
            None if self.scope == "model" else ends,
        )

    def limits(self, layout: Layout) -> EntryLimits:
        """Return limits of the number of non-zeros in each segment."""
        return entry_limits(self.count, self.scope, layout)


@dataclass(frozen=True)
class Threshold:
    """Plus or minus ``tau`` for every value whose magnitude exceeds it (Strom, 2015)."""

    part_id: ClassVar[str] = "threshold"
    tau: float
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        if not 0 < np.float32(self.tau) <= MAX_MAGNITUDE:
            raise ValueError(f"tau must be a positive float32 up to 2**100, got {self.tau}")
        object.__setattr__(self, "tau", float(self.tau))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Ternary:
        """Keep every value above the threshold, which can be none or all of them."""
        check_finite(x, layout)
        indices = np.flatnonzero(np.abs(x) > np.float32(self.tau))
        mu = np.float32(self.tau if indices.size else 0)
        return Ternary(x.size, indices, x[indices] > 0, np.array([mu]))

    def limits(self, layout: Layout) -> EntryLimits:
        """Return limits that allow any number of non-zeros, all of one magnitude."""
        every = np.array([layout.size], np.int64)
        return EntryLimits(every, every, float(np.float32(self.tau)))


def check_rate(p: float) -> float:
    """Return a sparsity rate as a Python float.

    Raises:
        ValueError: the rate is not in (0, 1].

    """
    if not 0 < p <= 1:
        raise ValueError(f"p must be in (0, 1], got {p}")
    return float(p)


def check_number(name: str, number: int, least: int) -> int:
    """Return a whole number as a Python integer.

    Raises:
        ValueError: it is not a whole number of at least ``least``.

    """
    if isinstance(number, bool) or operator.index(number) < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {number}")
    return operator.index(number)


def count_kept(size: int, p: float, least: int = 1) -> int:
    """Return k = max(floor(size * p), 1), corrected for rounding: 0.29 of 100 values are 29.

    Args:
        size: the number of values to choose from.
        p: the share of values that are kept.
        least: keep at least so many values, or all if there are fewer.

    """
    return max(math.floor(size * p * (1 + 1e-12)), min(least, size), 1)


Count = Callable[[int], int]
"""Returns the number of values to keep of a segment with this many values."""


def entry_limits(count: Count, scope: Scope, layout: Layout) -> EntryLimits:
    """Return the limits of updates with a share ``p`` of the values of each segment."""
    ends = layout.segments(scope)
    sizes = np.diff(ends, prepend=0).tolist()
    most = [min(count(size), size) for size in sizes]
    return EntryLimits(np.array(most, np.int64), ends)


def remember_thresholds(update: Update, magnitudes: Vector) -> dict[str, Vector]:
    """Return the thresholds for the next selection, by name; none for other updates."""
    if not isinstance(update, Sparse | Ternary | Steps):
        return {}
    return {"thresholds": next_thresholds(update, magnitudes)}


def select_largest(
    x: Vector,
    count: Count,
    scope: Scope,
    layout: Layout,
    state: Mapping[str, Vector] = EMPTY_STATE,
) -> tuple[NDArray[np.int64], Vector]:
    """Select the largest magnitudes of each segment, after adding a residual to ``x`` in place.

    Args:
        x: the vector; it is changed if there is a residual.
        count: the number of values to select from a segment.
        scope: whether a segment is the whole model or a tensor.
        layout: the model's tensors.
        state: the "residual" to add, and the estimated "thresholds" of the segments, which affect
            the speed only; both are optional.

    Returns:
        The indices of the selected values, ascending, and the values.

    Raises:
        NonFiniteError: a value is NaN, infinite or beyond 2**100.

    """
    indices, values = find_largest(x, count, scope, layout, state)
    check_selected(values, indices, layout)
    return indices, values


def find_largest(
    x: Vector,
    count: Count,
    scope: Scope,
    layout: Layout,
    state: Mapping[str, Vector],
) -> tuple[NDArray[np.int64], Vector]:
    """Like ``select_largest``, without the check; ``summarize`` checks and more in one call."""
    ends = layout.segments(scope)
    residual = state.get("residual")
    thresholds = state.get("thresholds")
    if thresholds is None or thresholds.size != ends.size:
        thresholds = np.zeros(ends.size, np.float32)
    if ends.size == 1:  # the common case: nothing to concatenate, and one copy less
        indices, values = add_top_k(x, residual, count(x.size), float(thresholds[0]))
    else:
        counts = [count(size) for size in np.diff(ends, prepend=0).tolist()]
        indices, values = _select_per_segment(
            x, counts, ends.tolist(), residual, thresholds.tolist()
        )
    return indices, values


def _select_per_segment(
    x: Vector,
    counts: list[int],
    ends: list[int],
    residual: Vector | None,
    thresholds: list[float],
) -> tuple[NDArray[np.int64], Vector]:
    indices = [np.empty(0, np.int64)]
    values = [np.empty(0, np.float32)]
    start = 0
    for k, end, threshold in zip(counts, ends, thresholds, strict=True):
        part = None if residual is None else residual[start:end]
        found, found_values = add_top_k(x[start:end], part, k, threshold)
        indices.append(found + start)
        values.append(found_values)
        start = end
    return np.concatenate(indices), np.concatenate(values)
