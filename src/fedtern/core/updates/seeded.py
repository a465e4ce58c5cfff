"""Updates whose positions follow from a seed and are not sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels import random_signs, rotate, sample_positions, scatter_add
from fedtern.core.layout import Vector
from fedtern.core.updates.plain import Dense

# Lengths of the blocks that are rotated. Fewer values than the smallest share one padded block.
_SMALLEST_BLOCK = 256
_LARGEST_BLOCK = 1 << 16

CENTROIDS: dict[int, tuple[float, ...]] = {
    1: (0.7978845608,),
    2: (0.4527800398, 1.5104176087),
    3: (0.2450941788, 0.7560052512, 1.3439092613, 2.1519457045),
    4: (
        0.1283950299, 0.3880482999, 0.6567591230, 0.9423404565,
        1.2562311512, 1.6180466250, 2.0690172906, 2.7326357834,
    ),
}  # fmt: skip
"""The positive centroids of the best quantiser of a standard normal variable, by bits per value."""


@dataclass(frozen=True, eq=False)
class Masked:
    """``values`` at the positions of a random mask, zero elsewhere."""

    size: int
    seed: int
    values: Vector

    @cached_property
    def indices(self) -> NDArray[np.int64]:
        """The positions of the mask."""
        return mask_positions(self.seed, self.size, self.values.size)

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        out = np.zeros(self.size, np.float32)
        self.add_to(out)
        return out

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        scatter_add(out, self.indices, self.values, np.float32(scale))


@dataclass(frozen=True, eq=False)
class Sketched:
    """Values at the positions of a random mask, rotated at random and rounded to few levels.

    The values are divided into blocks. Each block is rotated, and its values are rounded to a grid
    from its lowest to its highest value.
    """

    size: int
    seed: int
    kept: int  # number of positions in the mask
    bits: int  # per value
    levels: NDArray[np.int32]  # from 0 to 2**bits - 1, block by block
    lows: Vector  # one per block
    highs: Vector  # one per block

    @cached_property
    def masked(self) -> Masked:
        """The values of the grid, rotated back."""
        blocks = [np.empty(0, np.float32)]
        at = 0
        max_level = np.float32((1 << self.bits) - 1)
        signs = sketch_signs(self.seed, self.size, self.levels.size)
        for j, length in enumerate(block_lengths(self.kept)):
            part = slice(at, at + length)
            step = (self.highs[j] - self.lows[j]) / max_level
            block = self.lows[j] + step * self.levels[part].astype(np.float32)
            rotate(block)
            blocks.append(block * signs[part])
            at += length
        values = np.concatenate(blocks)[: self.kept]
        return Masked(self.size, self.seed, values)

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        return self.masked.to_dense()

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        self.masked.add_to(out, scale)


@dataclass(frozen=True, eq=False)
class Rotated:
    """All values, rotated at random and rounded to the centroids of a normal distribution.

    The values are divided into blocks. Each block is rotated, and its values are rounded to its
    scale times a centroid.
    """

    size: int
    seed: int
    bits: int  # per value
    levels: NDArray[np.int32]  # from 0 to 2**bits - 1 in ascending order of centroids
    scales: Vector  # one per block, not negative

    @cached_property
    def values(self) -> Vector:
        """The centroids, scaled and rotated back."""
        centroids = centroids_of(self.bits)
        signs = sketch_signs(self.seed, self.size, self.levels.size)
        values = np.empty(self.levels.size, np.float32)
        at = 0
        for scale, length in zip(self.scales, block_lengths(self.size), strict=True):
            block = scale * centroids[self.levels[at : at + length]]
            rotate(block)
            values[at : at + length] = block
            at += length
        values *= signs
        return values[: self.size]

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        return self.values.copy()

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        Dense(self.values).add_to(out, scale)


def centroids_of(bits: int) -> Vector:
    """Return all centroids of a number of bits, ascending.

    >>> centroids_of(1)
    array([-0.7978846,  0.7978846], dtype=float32)
    """
    positive = np.array(CENTROIDS[bits], np.float32)
    return np.concatenate([-positive[::-1], positive])


def mask_positions(seed: int, size: int, count: int) -> NDArray[np.int64]:
    """Return a random subset of ``count`` positions below ``size``, ascending."""
    positions = np.empty(count, np.int64)
    sample_positions(np.uint64(seed), size, positions)
    return positions


def sketch_signs(seed: int, size: int, count: int) -> Vector:
    """Return the random signs that values are multiplied by before they are rotated."""
    signs = np.empty(count, np.float32)
    random_signs(np.uint64(seed), size, signs)  # the mask uses the seed's numbers below size
    return signs


def block_lengths(kept: int) -> list[int]:
    """Return the block lengths of ``kept`` values: powers of two; only the last may be padded.

    >>> block_lengths(1000), block_lengths(70_000)
    ([512, 256, 256], [65536, 4096, 256, 128])
    """
    lengths = []
    while kept >= _SMALLEST_BLOCK:
        lengths.append(min(1 << (kept.bit_length() - 1), _LARGEST_BLOCK))
        kept -= lengths[-1]
    if kept > 0:
        lengths.append(1 << math.ceil(math.log2(kept)))
    return lengths
