"""Updates of positions that nobody has to name: they follow from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels import random_signs, rotate, sample_positions, scatter_add
from fedtern.core.layout import Vector

_SMALLEST, _LARGEST = 256, 1 << 16  # a block that is rotated as one


@dataclass(frozen=True, eq=False)
class Masked:
    """``values`` at the positions of a random mask, zero elsewhere."""

    size: int
    seed: int
    values: Vector

    @cached_property
    def indices(self) -> NDArray[np.int64]:
        """The positions that follow from the seed."""
        return masked_positions(self.seed, self.size, self.values.size)

    def to_dense(self) -> Vector:
        """The change as a new vector."""
        out = np.zeros(self.size, np.float32)
        self.add_to(out)
        return out

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """``out += scale * self``, in place."""
        scatter_add(out, self.indices, self.values, np.float32(scale))


@dataclass(frozen=True, eq=False)
class Sketched:
    """Values at the positions of a random mask, rotated at random and on a grid of few levels.

    The values are cut into blocks; each is rotated, and lies on a grid from its low to its high.
    """

    size: int
    seed: int
    kept: int  # positions in the mask
    bits: int  # a value
    levels: NDArray[np.int32]  # in [0, 2**bits), block by block
    lows: Vector  # one a block
    highs: Vector

    @cached_property
    def masked(self) -> Masked:
        """The same without rotation and grid."""
        parts, at, most = [], 0, np.float32((1 << self.bits) - 1)
        signs = sketch_signs(self.seed, self.size, self.levels.size)
        for j, length in enumerate(block_lengths(self.kept)):
            place = slice(at, at + length)
            step = (self.highs[j] - self.lows[j]) / most
            block = self.lows[j] + step * self.levels[place].astype(np.float32)
            rotate(block)
            parts.append(block * signs[place])
            at += length
        values = np.concatenate([np.empty(0, np.float32), *parts])[: self.kept]
        return Masked(self.size, self.seed, values)

    def to_dense(self) -> Vector:
        """The change as a new vector."""
        return self.masked.to_dense()

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """``out += scale * self``, in place."""
        self.masked.add_to(out, scale)


def masked_positions(seed: int, size: int, count: int) -> NDArray[np.int64]:
    """A random subset of ``count`` positions below ``size``, ascending."""
    positions = np.empty(count, np.int64)
    sample_positions(np.uint64(seed), size, positions)
    return positions


def sketch_signs(seed: int, size: int, count: int) -> Vector:
    """What the values are multiplied by before they are rotated."""
    signs = np.empty(count, np.float32)
    random_signs(np.uint64(seed), size, signs)  # numbers below size have made the mask
    return signs


def block_lengths(kept: int) -> list[int]:
    """Powers of two that ``kept`` values are rotated in; only the last block may be padded.

    >>> block_lengths(1000), block_lengths(70_000)
    ([512, 256, 256], [65536, 4096, 256, 128])
    """
    lengths = []
    while kept >= _SMALLEST:
        lengths.append(min(1 << (kept.bit_length() - 1), _LARGEST))
        kept -= lengths[-1]
    if kept > 0:
        lengths.append(1 << math.ceil(math.log2(kept)))
    return lengths
