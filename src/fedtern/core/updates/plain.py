"""The basic updates: dense, sparse, ternary and signs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels import scatter_add, scatter_signs
from fedtern.core.layout import Vector
from fedtern.core.updates.update import Update


@dataclass(frozen=True, eq=False)
class Dense:
    """One value for every weight."""

    values: Vector

    @property
    def size(self) -> int:
        """The length of the vector that the update changes."""
        return self.values.size

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        return self.values.copy()

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        out += self.values if scale == 1 else np.float32(scale) * self.values


@dataclass(frozen=True, eq=False)
class Sparse:
    """``values`` at ``indices``, zero elsewhere."""

    size: int
    indices: NDArray[np.int64]  # strictly increasing
    values: Vector

    @classmethod
    def empty(cls, size: int) -> Sparse:
        """Return an update that changes nothing."""
        return cls(size, np.empty(0, np.int64), np.empty(0, np.float32))

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        return _add_to_zeros(self)

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        scatter_add(out, self.indices, self.values, np.float32(scale))


@dataclass(frozen=True, eq=False)
class Ternary:
    """``mu`` or ``-mu`` at ``indices``, zero elsewhere; each segment has its own ``mu``.

    >>> Ternary(6, np.array([1, 4]), np.array([True, False]), np.float32([0.5])).to_dense()
    array([ 0. ,  0.5,  0. ,  0. , -0.5,  0. ], dtype=float32)
    """

    size: int
    indices: NDArray[np.int64]  # strictly increasing
    signs: NDArray[np.bool_]  # True for +mu
    mus: Vector  # one per segment; zero if the segment has no entry
    ends: NDArray[np.int64] | None = None  # one past each segment; None for a single segment

    @cached_property
    def values(self) -> Vector:
        """``mu`` or ``-mu`` for each index."""
        mus = self.mus if self.ends is None else self.mus[find_segments(self.indices, self.ends)]
        return np.where(self.signs, mus, -mus).astype(np.float32, copy=False)

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        return _add_to_zeros(self)

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        if self.ends is None:
            scatter_signs(out, self.indices, self.signs, np.float32(scale) * self.mus[0])
        else:
            scatter_add(out, self.indices, self.values, np.float32(scale))


@dataclass(frozen=True, eq=False)
class Signs:
    """``step`` or ``-step`` for every weight."""

    size: int
    bits: NDArray[np.uint8]  # eight per byte, lowest bit first; 1 for +step
    step: float

    @classmethod
    def pack(cls, positive: NDArray[np.bool_], step: float) -> Signs:
        """Make an update from one boolean per weight, True for ``+step``."""
        return cls(positive.size, np.packbits(positive, bitorder="little"), step)

    @property
    def positive(self) -> NDArray[np.bool_]:
        """One boolean per weight, True for ``+step``."""
        return np.unpackbits(self.bits, count=self.size, bitorder="little").view(np.bool_)

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        step = np.float32(self.step)
        return np.where(self.positive, step, -step)

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        Dense(self.to_dense()).add_to(out, scale)


def find_segments(indices: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the segment of each index; ``ends`` is one past each segment."""
    return np.searchsorted(ends, indices, side="right")


def _add_to_zeros(update: Update) -> Vector:
    out = np.zeros(update.size, np.float32)
    update.add_to(out)
    return out
