"""Few of many values, chosen by their magnitude."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.compressors.compressor import (
    LARGEST,
    Loss,
    check_finite,
    check_kept,
    mean_of,
    thresholds_of,
)
from fedtern.core.kernels import add_top_k, top_k
from fedtern.core.layout import Layout, Scope, Vector, check_scope
from fedtern.core.updates import Sparse, Ternary


@dataclass(frozen=True)
class TopK:
    """The k largest magnitudes with their values (Aji and Heafield, 2017).

    k = max(floor(n p), 1), over the whole vector or over each tensor.
    """

    part_id: ClassVar[str] = "top_k"
    p: float
    scope: Scope = "model"
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_rate(self.p))
        check_scope(self.scope)

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Sparse:
        """Keep exactly min(k, nonzeros) entries of each segment."""
        return Sparse(x.size, *keep(x, self.p, self.scope, layout))

    def accumulate(
        self, delta: Vector, residual: Vector | None, thresholds: Vector | None, layout: Layout
    ) -> tuple[Sparse, Vector]:
        """What ``compress`` keeps of ``delta += residual``, and the next thresholds."""
        kept = keep(delta, self.p, self.scope, layout, residual, thresholds)
        update = Sparse(delta.size, *kept)
        return update, thresholds_of(update, np.abs(update.values))


@dataclass(frozen=True)
class SparseTernary:
    """The signs of the k largest magnitudes, at their mean magnitude.

    Sattler et al. (2019), Algorithm 1: k = max(floor(n p), 1), mu = mean of the magnitudes kept.

    >>> x = np.float32([0, 3, -1, 0.5, -5, 0])
    >>> SparseTernary(p=1 / 3).compress(x, Layout.flat(6), np.random.default_rng(0)).to_dense()
    array([ 0.,  4.,  0.,  0., -4.,  0.], dtype=float32)
    """

    part_id: ClassVar[str] = "sparse_ternary"
    p: float
    scope: Scope = "model"
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", TopK(self.p, self.scope).p)

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Ternary:
        """What ``TopK`` keeps, ternarised for each segment; all zeros give an empty update."""
        indices, values = keep(x, self.p, self.scope, layout)
        return self._ternarise(indices, values, np.abs(values), layout)

    def accumulate(
        self, delta: Vector, residual: Vector | None, thresholds: Vector | None, layout: Layout
    ) -> tuple[Ternary, Vector]:
        """What ``compress`` makes of ``delta += residual``, and the next thresholds."""
        indices, values = keep(delta, self.p, self.scope, layout, residual, thresholds)
        magnitudes = np.abs(values)
        update = self._ternarise(indices, values, magnitudes, layout)
        return update, thresholds_of(update, magnitudes)

    def _ternarise(
        self, indices: NDArray[np.int64], values: Vector, magnitudes: Vector, layout: Layout
    ) -> Ternary:
        # Unlike the paper: where fewer than k entries differ from zero, mu is the mean of those
        # there are, so that compressing an update once more changes nothing.
        signs = values > 0
        if self.scope == "model":
            return Ternary(layout.size, indices, signs, np.array([mean_of(magnitudes)]))
        cuts = [0, *np.searchsorted(indices, layout.ends).tolist()]
        mus = [mean_of(magnitudes[a:b]) for a, b in pairwise(cuts)]
        return Ternary(layout.size, indices, signs, np.array(mus, np.float32), layout.ends)


@dataclass(frozen=True)
class SparseBinary:
    """The largest positive or the largest negative values, at their mean (Sattler et al., 2018).

    Of the k highest and the k lowest values of each segment, those with the larger mean magnitude.

    >>> x = np.float32([0, 3, -1, 0.5, -5, -4])
    >>> SparseBinary(p=1 / 3).compress(x, Layout.flat(6), np.random.default_rng(0)).to_dense()
    array([ 0. ,  0. ,  0. ,  0. , -4.5, -4.5], dtype=float32)
    """

    part_id: ClassVar[str] = "sparse_binary"
    p: float
    scope: Scope = "model"
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", TopK(self.p, self.scope).p)

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Ternary:
        """All of a segment's signs are equal; all zeros give an empty update."""
        check_finite(x, layout)
        high, low = np.maximum(x, 0), np.minimum(x, 0)
        ends = layout.segments(self.scope)
        indices, signs, mus = [np.empty(0, np.int64)], [np.empty(0, np.bool_)], []
        for start, end in pairwise([0, *ends.tolist()]):
            k = count_kept(end - start, self.p)
            sides = [top_k(side[start:end], k) + start for side in (high, low)]
            # Of k values: where there are fewer of a sign, the others count as nothing.
            strengths = [np.abs(x[side]).sum(dtype=np.float64) for side in sides]
            positive = bool(strengths[0] >= strengths[1])
            kept = sides[0 if positive else 1]
            indices.append(kept)
            signs.append(np.full(kept.size, positive))
            mus.append(mean_of(np.abs(x[kept])))
        one = None if self.scope == "model" else ends
        both = np.concatenate(indices), np.concatenate(signs)
        return Ternary(x.size, *both, np.array(mus, np.float32), one)


@dataclass(frozen=True)
class Threshold:
    """``tau`` with the sign of every value whose magnitude is above it (Strom, 2015)."""

    part_id: ClassVar[str] = "threshold"
    tau: float
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        if not 0 < np.float32(self.tau) <= LARGEST:
            raise ValueError(f"tau must be a positive float32 up to 2**100, got {self.tau}")
        object.__setattr__(self, "tau", float(self.tau))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Ternary:
        """As many entries as there are, from none to all."""
        check_finite(x, layout)
        indices = np.flatnonzero(np.abs(x) > np.float32(self.tau))
        mu = np.float32(self.tau if indices.size else 0)
        return Ternary(x.size, indices, x[indices] > 0, np.array([mu]))


def check_rate(p: float) -> float:
    """A sparsity rate as a plain number; refuse one outside (0, 1].

    Plain, because whatever has another ``repr`` would give a method another digest.
    """
    if not 0 < p <= 1:
        raise ValueError(f"p must be in (0, 1], got {p}")
    return float(p)


def count_kept(size: int, p: float) -> int:
    """K = max(floor(size * p), 1), with 0.29 of 100 counted as 29 although 0.29 * 100 < 29."""
    return max(math.floor(size * p * (1 + 1e-12)), 1)


def keep(
    x: Vector,
    p: float,
    scope: Scope,
    layout: Layout,
    residual: Vector | None = None,
    thresholds: Vector | None = None,
) -> tuple[NDArray[np.int64], Vector]:
    """Where the largest magnitudes of each segment are, ascending, and the values there.

    Adds a residual to ``x`` first, and refuses what is not finite.
    """
    ends = layout.segments(scope)
    if thresholds is None or thresholds.size != ends.size:
        thresholds = np.zeros(ends.size, np.float32)
    if ends.size == 1:  # as a rule: nothing to put together, and a copy less
        kept = add_top_k(x, residual, count_kept(x.size, p), float(thresholds[0]))
    else:
        kept = _keep_each(x, p, ends.tolist(), residual, thresholds.tolist())
    check_kept(kept[1], kept[0], layout)
    return kept


def _keep_each(
    x: Vector, p: float, ends: list[int], residual: Vector | None, thresholds: list[float]
) -> tuple[NDArray[np.int64], Vector]:
    indices, values, start = [np.empty(0, np.int64)], [np.empty(0, np.float32)], 0
    for end, threshold in zip(ends, thresholds, strict=True):
        rest = None if residual is None else residual[start:end]
        found, there = add_top_k(x[start:end], rest, count_kept(end - start, p), threshold)
        indices.append(found + start)
        values.append(there)
        start = end
    return np.concatenate(indices), np.concatenate(values)
