"""Lossy steps: from a vector to an update that is cheaper to send.

A compressor is pure: the same vector and random generator give the same update. The update may
share memory with the vector it was made from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtern.kernels import first_unsafe, top_k
from fedtern.layout import Layout, Scope, Vector, check_scope
from fedtern.updates import Dense, Signs, Sparse, Ternary, Update

_LARGEST = 2.0**100  # no sum of messages comes near overflow


class Compressor(Protocol):
    """Makes updates; ``lossless`` tells whether they always equal what they were made from."""

    lossless: ClassVar[bool]

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Update:
        """An update close to ``x``; refuses values that are not finite, naming the tensor."""
        ...


@dataclass(frozen=True)
class Identity:
    """Everything, as it is."""

    lossless: ClassVar[bool] = True

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Dense:
        """The vector itself, once every value is known to be finite."""
        check_finite(x, layout)
        return Dense(x)


@dataclass(frozen=True)
class TopK:
    """The k largest magnitudes with their values (Aji and Heafield, 2017).

    k = max(floor(n p), 1), over the whole vector or over each tensor.
    """

    p: float
    scope: Scope = "model"
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_rate(self.p))
        check_scope(self.scope)

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Sparse:
        """Keep exactly min(k, nonzeros) entries of each segment."""
        kept = select(x, self.p, layout.segments(self.scope))
        values = x[kept]
        check_kept(values, kept, layout)
        return Sparse(x.size, kept, values)


@dataclass(frozen=True)
class SparseTernary:
    """The signs of the k largest magnitudes, at their mean magnitude.

    Sattler et al. (2019), Algorithm 1: k = max(floor(n p), 1), mu = mean of the magnitudes kept.

    >>> x = np.float32([0, 3, -1, 0.5, -5, 0])
    >>> SparseTernary(p=1 / 3).compress(x, Layout.flat(6), np.random.default_rng(0)).to_dense()
    array([ 0.,  4.,  0.,  0., -4.,  0.], dtype=float32)
    """

    p: float
    scope: Scope = "model"
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", TopK(self.p, self.scope).p)

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Ternary:
        """What ``TopK`` keeps, ternarised for each segment; all zeros give an empty update."""
        kept = TopK(self.p, self.scope).compress(x, layout, rng)
        ends = layout.segments(self.scope)
        starts = np.searchsorted(kept.indices, np.concatenate([[0], ends]))
        # Unlike the paper: where fewer than k entries differ from zero, mu is the mean of those
        # there are, so that compressing an update once more changes nothing.
        mus = [_mean_magnitude(kept.values[a:b]) for a, b in pairwise(starts)]
        single = self.scope == "model"
        return Ternary(
            x.size,
            kept.indices,
            kept.values > 0,
            np.array(mus, np.float32),
            None if single else ends,
        )


@dataclass(frozen=True)
class Sign:
    """One bit for each weight: ``step`` up or down (Bernstein et al., 2018).

    Unlike the paper: a zero, or a tied vote, has no sign to send in one bit; it gets one at
    random, where always sending the same one would push such weights in one direction.
    """

    step: float = 1.0
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < np.float32(self.step) <= _LARGEST:
            raise ValueError(f"step must be a positive float32 up to 2**100, got {self.step}")
        object.__setattr__(self, "step", float(self.step))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Signs:
        """The signs of ``x``, whatever its magnitudes."""
        check_finite(x, layout)
        positive = x > 0
        ties = np.flatnonzero(x == 0)
        positive[ties] = rng.integers(0, 2, ties.size, dtype=np.uint8).view(np.bool_)
        return Signs.pack(positive, float(np.float32(self.step)))


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


def select(x: Vector, p: float, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the largest magnitudes of each segment, ascending over the whole vector."""
    parts, start = [], 0
    for end in ends.tolist():
        parts.append(top_k(x[start:end], count_kept(end - start, p)) + start)
        start = end
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])


def check_finite(x: Vector, layout: Layout) -> None:
    """Refuse NaN, infinity and magnitudes beyond 2**100, naming the tensor."""
    if (bad := first_unsafe(x)) >= 0:
        raise layout.refuse(bad, float(x[bad]))


def check_kept(values: Vector, kept: NDArray[np.int64], layout: Layout) -> None:
    """Like ``check_finite`` on a vector, given its largest values: a bad one is among them."""
    if (bad := first_unsafe(values)) >= 0:
        raise layout.refuse(int(kept[bad]), float(values[bad]))


def _mean_magnitude(values: Vector) -> np.float32:
    return np.float32(np.abs(values).mean(dtype=np.float64)) if values.size else np.float32(0)
