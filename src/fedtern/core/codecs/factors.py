"""Updates of low rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.core.codecs.codec import expect, open_payload
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import LowRank, Projected, Update
from fedtern.core.updates.factors import (
    WHOLE,
    MatrixShapes,
    count_right_values,
    count_values,
    matrix_shapes,
)
from fedtern.core.wire import Reader, check_floats, floats, u64, varint

# A product of factors within these, of any rank there can be, stays below 2**100.
_MOST_LEFT, _MOST_RIGHT, _MOST_RANK = np.float32(2.0), np.float32(2.0**80), 1 << 15


@dataclass(frozen=True)
class LowRankCodec:
    """``id | rank + 1 of each tensor, or 0 | float32 factors, or values``."""

    part_id: ClassVar[str] = "low_rank"
    id: ClassVar[int] = 13
    name: ClassVar[str] = "low rank"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Four bytes for each entry of a factor."""
        low = expect(update, LowRank)
        return bytes([self.id]) + _ranks(low.ranks) + floats(low.values)

    def decode(self, data: bytes, layout: Layout) -> LowRank:
        """Factors of matrices in the shapes of the layout's tensors."""
        reader = open_payload(data, self.id)
        sides = matrix_shapes(layout)
        ranks = _read_ranks(reader, sides)
        wanted = sum(count_values(s, r) for s, r in zip(sides, ranks, strict=True))
        low = LowRank(sides, ranks, _read_values(reader, wanted))
        for (rows, _), rank, part in low.tensors():
            if rank != WHOLE:
                _check_factor(part[: rank * rows], _MOST_LEFT)
                _check_factor(part[rank * rows :], _MOST_RIGHT)
        return low


@dataclass(frozen=True)
class ProjectedCodec:
    """``id | seed | rank + 1 of each tensor, or 0 | float32 right factors, or values``."""

    part_id: ClassVar[str] = "projected"
    id: ClassVar[int] = 15
    name: ClassVar[str] = "low rank, by seed"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Eight bytes for all left factors, four for each entry of a right one."""
        low = expect(update, Projected)
        return bytes([self.id]) + u64(low.seed) + _ranks(low.ranks) + floats(low.values)

    def decode(self, data: bytes, layout: Layout) -> Projected:
        """Right factors that fit the layout's tensors."""
        reader = open_payload(data, self.id)
        seed, sides = reader.u64(), matrix_shapes(layout)
        ranks = _read_ranks(reader, sides)
        lengths = [count_right_values(s, r) for s, r in zip(sides, ranks, strict=True)]
        values, at = _read_values(reader, sum(lengths)), 0
        for rank, length in zip(ranks, lengths, strict=True):
            if rank != WHOLE:
                _check_factor(values[at : at + length], _MOST_RIGHT)
            at += length
        return Projected(sides, ranks, seed, values)


def _ranks(ranks: tuple[int, ...]) -> bytes:
    return b"".join(varint(rank + 1) for rank in ranks)


def _read_ranks(reader: Reader, sides: MatrixShapes) -> tuple[int, ...]:
    ranks = []
    for rows, columns in sides:
        rank = reader.varint() - 1
        if rank != WHOLE and (rank > _MOST_RANK or rank * (rows + columns) >= rows * columns):
            raise DecodeError(f"a matrix of {rows} by {columns} is not sent by {rank} factors")
        ranks.append(rank)
    return tuple(ranks)


def _read_values(reader: Reader, count: int) -> Vector:
    if reader.left != 4 * count:
        raise DecodeError(f"{count} values take {4 * count} bytes, got {reader.left}")
    return check_floats(reader.floats(count), lambda i: f"value {i}")


def _check_factor(values: Vector, most: np.float32) -> None:
    if values.size and np.abs(values).max() > most:
        raise DecodeError(f"a factor has an entry beyond {most}")
