"""Matrices of low rank, as products of two thin ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedtern.core.kernels import random_signs
from fedtern.core.layout import Layout, Vector

Sides = tuple[tuple[int, int], ...]
WHOLE = -1  # in the place of a rank: the tensor's values as they are


@dataclass(frozen=True, eq=False)
class LowRank:
    """A matrix ``left @ right.T`` for each tensor; small tensors as they are.

    The product is a sum of outer products, one after the other: the same bits on every machine,
    which a matrix multiplication does not give.
    """

    sides: Sides  # rows and columns of each tensor
    ranks: tuple[int, ...]  # of each tensor, or WHOLE
    values: Vector  # tensor by tensor: left, column by column, and right; or the whole tensor

    @property
    def size(self) -> int:
        """The length of the vector it changes."""
        return sum(rows * columns for rows, columns in self.sides)

    def to_dense(self) -> Vector:
        """The change as a new vector."""
        out = np.zeros(self.size, np.float32)
        self.add_to(out)
        return out

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """``out += scale * self``, in place."""
        at = 0
        for (rows, columns), rank, part in self.parts():
            view = out[at : at + rows * columns]
            at += rows * columns
            if rank == WHOLE:
                view += np.float32(scale) * part
                continue
            # Added as one: what two ranks do to each other is nobody else's business.
            product = np.zeros((rows, columns), np.float32)
            for u, v in zip(*split_factors(part, rows, rank), strict=True):
                product += np.multiply.outer(u, v)
            view += np.float32(scale) * product.reshape(-1)

    def parts(self) -> Iterator[tuple[tuple[int, int], int, Vector]]:
        """Each tensor's sides, rank and values."""
        at = 0
        for sides, rank in zip(self.sides, self.ranks, strict=True):
            length = part_length(sides, rank)
            yield sides, rank, self.values[at : at + length]
            at += length


@dataclass(frozen=True, eq=False)
class Projected:
    """``LowRank`` whose left factors follow from a seed, and only the right ones are its own.

    A left factor's entries are 1 or -1 over the root of its rows: columns of length one.
    """

    sides: Sides
    ranks: tuple[int, ...]
    seed: int
    values: Vector  # tensor by tensor: right, column by column; or the whole tensor

    @property
    def size(self) -> int:
        """The length of the vector it changes."""
        return sum(rows * columns for rows, columns in self.sides)

    @cached_property
    def product(self) -> LowRank:
        """The same with both factors."""
        parts, at = [np.empty(0, np.float32)], 0
        lefts = random_lefts(self.sides, self.ranks, self.seed)
        for (rows, columns), rank, left in zip(self.sides, self.ranks, lefts, strict=True):
            length = right_length((rows, columns), rank)
            parts += [left.reshape(-1), self.values[at : at + length]]
            at += length
        return LowRank(self.sides, self.ranks, np.concatenate(parts))

    def to_dense(self) -> Vector:
        """The change as a new vector."""
        return self.product.to_dense()

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """``out += scale * self``, in place."""
        self.product.add_to(out, scale)


def matrix_sides(layout: Layout) -> Sides:
    """Each tensor as a matrix: its first axis by all the others."""
    return tuple(
        (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
        for shape in layout.shapes
    )


def ranks_within(sides: Sides, rank: int) -> tuple[int, ...]:
    """The rank of each tensor; one that is no longer than its factors would be is sent whole."""
    return tuple(WHOLE if rank * (m + n) >= m * n else rank for m, n in sides)


def right_length(sides: tuple[int, int], rank: int) -> int:
    """How many values a tensor of these sides takes where its left factor is known."""
    rows, columns = sides
    return rows * columns if rank == WHOLE else rank * columns


def part_length(sides: tuple[int, int], rank: int) -> int:
    """How many values a tensor's part of an update has."""
    rows, columns = sides
    return rows * columns if rank == WHOLE else rank * (rows + columns)


def split_factors(part: Vector, rows: int, rank: int) -> tuple[Vector, Vector]:
    """A tensor's two factors, each as one row for each rank."""
    left, right = part[: rank * rows], part[rank * rows :]
    return left.reshape(rank, rows), right.reshape(rank, right.size // max(rank, 1))


def random_lefts(sides: Sides, ranks: tuple[int, ...], seed: int) -> Iterator[Vector]:
    """Left factors that follow from a seed, one row for each rank; empty for a whole tensor."""
    first = 0
    for (rows, _), rank in zip(sides, ranks, strict=True):
        count = max(rank, 0)
        signs = np.empty(count * rows, np.float32)
        random_signs(np.uint64(seed), first, signs)
        first += signs.size
        yield (signs / np.float32(math.sqrt(max(rows, 1)))).reshape(count, rows)
