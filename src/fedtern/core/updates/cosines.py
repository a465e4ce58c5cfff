"""Sparse updates in the domain of a discrete cosine transform."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from fedtern.core.layout import Vector
from fedtern.core.updates.factors import MatrixShapes
from fedtern.core.updates.plain import Dense

LARGEST_SIDE = 64
"""The largest number of rows or columns of a block."""

_CACHED_VALUES = 1 << 13  # that are transformed together, and stay in the processor's cache


@dataclass(frozen=True, eq=False)
class Cosines:
    """Few coefficients of the cosine transform of each tensor, block by block.

    A tensor is a matrix that is divided into blocks of equal size. The coefficient of row u and
    column v of a block has the position of the value in row u and column v of the block.

    The inverse transform is a sum of products in a fixed order. Unlike a matrix multiplication,
    this gives the same bits on every machine.
    """

    shapes: MatrixShapes
    indices: NDArray[np.int64]  # ascending
    coefficients: Vector  # one per index

    @property
    def size(self) -> int:
        """The length of the vector that the update changes."""
        return sum(rows * columns for rows, columns in self.shapes)

    @cached_property
    def values(self) -> Vector:
        """The values of the update, transformed back."""
        out = np.zeros(self.size, np.float32)
        out[self.indices] = self.coefficients
        for view in block_views(out, self.shapes):
            blocks = view.reshape(-1, *view.shape[2:])  # a copy in the order of the blocks
            together = max(_CACHED_VALUES // blocks[0].size, 1)
            for start in range(0, len(blocks), together):
                part = blocks[start : start + together]
                part[...] = _transform_back(part)
            view[...] = blocks.reshape(view.shape)
        return out

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        return self.values.copy()

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        Dense(self.values).add_to(out, scale)


def _transform_back(blocks: Vector) -> Vector:
    """Add coefficient times cosine along both axes of each block, by ascending coefficient.

    Coefficients of zero are skipped, which does not change the sums.
    """
    _, high, wide = blocks.shape
    rows = cosine_table(high)
    columns = cosine_table(wide)
    inner = np.zeros_like(blocks)
    for v in np.flatnonzero(blocks.any(axis=(0, 1))):
        inner += blocks[:, :, v, None] * columns[v]
    out = np.zeros_like(blocks)
    for u in np.flatnonzero(inner.any(axis=(0, 2))):
        out += rows[u, :, None] * inner[:, u, None, :]
    return out


def block_views(x: Vector, shapes: MatrixShapes) -> Iterator[Vector]:
    """Yield each tensor as a view: row of blocks, column of blocks, row, column."""
    at = 0
    for rows, columns in shapes:
        if rows * columns:
            high, wide = block_side(rows), block_side(columns)
            part = x[at : at + rows * columns]
            yield part.reshape(rows // high, high, columns // wide, wide).transpose(0, 2, 1, 3)
        at += rows * columns


@cache
def block_side(length: int) -> int:
    """Return the largest divisor of a length that is at most 64.

    >>> [block_side(length) for length in (10, 512, 1600, 75, 127)]
    [10, 64, 64, 25, 1]
    """
    return next(side for side in range(min(length, LARGEST_SIDE), 0, -1) if length % side == 0)


@cache
def cosine_table(length: int) -> Vector:
    """Return the orthonormal cosines: a row for each coefficient, a column for each value.

    No entry is within 90,000 float64 roundings of the middle between two float32 numbers, so every
    machine gets the same table.
    """
    u = np.arange(length)[:, None]
    i = np.arange(length)[None, :]
    scale = np.full((length, 1), np.sqrt(2 / length))
    scale[0] = np.sqrt(1 / length)
    # The angle is reduced in integers, to keep the error of the cosine small.
    turns = (2 * i + 1) * u % (4 * length)
    cosines = np.where(turns % (2 * length) == length, 0.0, np.cos(np.pi * turns / (2 * length)))
    table: Vector = (scale * cosines).astype(np.float32)
    table.setflags(write=False)
    return table
