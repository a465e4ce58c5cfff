"""Low-rank updates: each tensor as the product of two thin matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedtern.core.kernels import random_signs
from fedtern.core.layout import Layout, Vector

MatrixShapes = tuple[tuple[int, int], ...]
"""Rows and columns of each tensor."""

WHOLE = -1
"""In place of a rank: the tensor is sent whole, without factors."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """A product ``left @ right.T`` for each tensor; small tensors are whole.

    The product is computed as a sum of outer products in a fixed order. Unlike a matrix
    multiplication, this gives the same bits on every machine.
    """

    shapes: MatrixShapes
    ranks: tuple[int, ...]  # one per tensor, or WHOLE
    values: Vector  # tensor by tensor: columns of left, then columns of right; or the whole tensor

    @property
    def size(self) -> int:
        """The length of the vector that the update changes."""
        return sum(rows * columns for rows, columns in self.shapes)

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        out = np.zeros(self.size, np.float32)
        self.add_to(out)
        return out

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        at = 0
        for (rows, columns), rank, values in self.tensors():
            view = out[at : at + rows * columns]
            at += rows * columns
            if rank == WHOLE:
                view += np.float32(scale) * values
                continue
            # Sum the outer products first, so that the sum's rounding does not depend on ``out``.
            product = np.zeros((rows, columns), np.float32)
            lefts, rights = split_factors(values, rows, rank)
            for left, right in zip(lefts, rights, strict=True):
                product += np.multiply.outer(left, right)
            view += np.float32(scale) * product.reshape(-1)

    def tensors(self) -> Iterator[tuple[tuple[int, int], int, Vector]]:
        """Yield the shape, the rank and the values of each tensor."""
        at = 0
        for shape, rank in zip(self.shapes, self.ranks, strict=True):
            length = count_values(shape, rank)
            yield shape, rank, self.values[at : at + length]
            at += length


@dataclass(frozen=True, eq=False)
class Projected:
    """A ``LowRank`` whose left factors follow from a seed; only the right factors are stored.

    The entries of a left factor are 1 or -1 divided by the square root of its number of rows, so
    that its columns have length one.
    """

    shapes: MatrixShapes
    ranks: tuple[int, ...]  # one per tensor, or WHOLE
    seed: int
    values: Vector  # tensor by tensor: columns of right; or the whole tensor

    @property
    def size(self) -> int:
        """The length of the vector that the update changes."""
        return sum(rows * columns for rows, columns in self.shapes)

    @cached_property
    def low_rank(self) -> LowRank:
        """The same update with both factors."""
        parts = [np.empty(0, np.float32)]
        at = 0
        lefts = random_left_factors(self.shapes, self.ranks, self.seed)
        for shape, rank, left in zip(self.shapes, self.ranks, lefts, strict=True):
            length = count_right_values(shape, rank)
            parts += [left.reshape(-1), self.values[at : at + length]]
            at += length
        return LowRank(self.shapes, self.ranks, np.concatenate(parts))

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        return self.low_rank.to_dense()

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        self.low_rank.add_to(out, scale)


def matrix_shapes(layout: Layout) -> MatrixShapes:
    """Return the shape of each tensor as a matrix: its first axis by all the others.

    A tensor with fewer than two axes has one row.
    """
    return tuple(
        (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
        for shape in layout.shapes
    )


def choose_ranks(shapes: MatrixShapes, rank: int) -> tuple[int, ...]:
    """Return ``rank`` for each tensor, or WHOLE if its factors would not be smaller."""
    return tuple(WHOLE if rank * (m + n) >= m * n else rank for m, n in shapes)


def count_values(shape: tuple[int, int], rank: int) -> int:
    """Return the number of values a ``LowRank`` update stores for a tensor."""
    rows, columns = shape
    return rows * columns if rank == WHOLE else rank * (rows + columns)


def count_right_values(shape: tuple[int, int], rank: int) -> int:
    """Return the number of values a ``Projected`` update stores for a tensor."""
    rows, columns = shape
    return rows * columns if rank == WHOLE else rank * columns


def split_factors(values: Vector, rows: int, rank: int) -> tuple[Vector, Vector]:
    """Split a tensor's values into its two factors, each transposed: one row per rank."""
    left = values[: rank * rows]
    right = values[rank * rows :]
    return left.reshape(rank, rows), right.reshape(rank, right.size // max(rank, 1))


def random_left_factors(
    shapes: MatrixShapes, ranks: tuple[int, ...], seed: int
) -> Iterator[Vector]:
    """Yield the left factor of each tensor, transposed; it has no rows for a whole tensor."""
    first = 0
    for (rows, _), rank in zip(shapes, ranks, strict=True):
        count = max(rank, 0)
        signs = np.empty(count * rows, np.float32)
        random_signs(np.uint64(seed), first, signs)
        first += signs.size
        yield (signs / np.float32(math.sqrt(max(rows, 1)))).reshape(count, rows)
