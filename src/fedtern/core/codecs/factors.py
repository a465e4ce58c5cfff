"""Codecs of low-rank updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.core.codecs.codec import check_kind, open_payload
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Limits, LowRank, Projected, Update
from fedtern.core.updates.factors import (
    WHOLE,
    MatrixShapes,
    count_right_values,
    count_values,
    matrix_shapes,
)
from fedtern.core.updates.limits import RankLimits
from fedtern.core.wire import Reader, check_floats, floats, u64, varint

# Within these limits, the product of two factors stays below 2**100.
_MAX_LEFT = np.float32(2.0)
_MAX_RIGHT = np.float32(2.0**80)
_MAX_RANK = 1 << 15


@dataclass(frozen=True)
class LowRankCodec:
    """Codec of low-rank updates.

    Format: ``id | for each tensor, rank + 1, or 0 if it is whole | float32 factors, or values``.
    """

    part_id: ClassVar[str] = "low_rank"
    id: ClassVar[int] = 13
    name: ClassVar[str] = "low rank"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode both factors with four bytes per entry."""
        low_rank = check_kind(update, LowRank)
        return bytes([self.id]) + _encode_ranks(low_rank.ranks) + floats(low_rank.values)

    def decode(self, data: bytes, layout: Layout) -> LowRank:
        """Decode factors that fit the layout's tensors."""
        reader = open_payload(data, self.id)
        shapes = matrix_shapes(layout)
        ranks = _read_ranks(reader, shapes)
        count = sum(count_values(s, r) for s, r in zip(shapes, ranks, strict=True))
        low_rank = LowRank(shapes, ranks, _read_values(reader, count))
        for (rows, _), rank, values in low_rank.tensors():
            if rank != WHOLE:
                _check_factor(values[: rank * rows], _MAX_LEFT)
                _check_factor(values[rank * rows :], _MAX_RIGHT)
        return low_rank

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        return 1 + _max_bytes(limits, layout, right_only=False)


@dataclass(frozen=True)
class ProjectedCodec:
    """Codec of low-rank updates by seed.

    Format: ``id | seed | for each tensor, rank + 1, or 0 | float32 right factors, or values``.
    """

    part_id: ClassVar[str] = "projected"
    id: ClassVar[int] = 15
    name: ClassVar[str] = "low rank, by seed"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode the seed of all left factors, and the right factors with four bytes per entry."""
        projected = check_kind(update, Projected)
        head = bytes([self.id]) + u64(projected.seed)
        return head + _encode_ranks(projected.ranks) + floats(projected.values)

    def decode(self, data: bytes, layout: Layout) -> Projected:
        """Decode right factors that fit the layout's tensors."""
        reader = open_payload(data, self.id)
        seed = reader.u64()
        shapes = matrix_shapes(layout)
        ranks = _read_ranks(reader, shapes)
        lengths = [count_right_values(s, r) for s, r in zip(shapes, ranks, strict=True)]
        values = _read_values(reader, sum(lengths))
        at = 0
        for rank, length in zip(ranks, lengths, strict=True):
            if rank != WHOLE:
                _check_factor(values[at : at + length], _MAX_RIGHT)
            at += length
        return Projected(shapes, ranks, seed, values)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        return 1 + 8 + _max_bytes(limits, layout, right_only=True)


def _max_bytes(limits: Limits, layout: Layout, *, right_only: bool) -> int:
    values = layout.size
    if isinstance(limits, RankLimits):
        values = limits.count_values(right_only=right_only)
    return 3 * layout.ends.size + 4 * values  # a rank takes up to three bytes


def _encode_ranks(ranks: tuple[int, ...]) -> bytes:
    return b"".join(varint(rank + 1) for rank in ranks)


def _read_ranks(reader: Reader, shapes: MatrixShapes) -> tuple[int, ...]:
    ranks = []
    for rows, columns in shapes:
        rank = reader.varint() - 1
        if rank != WHOLE and (rank > _MAX_RANK or rank * (rows + columns) >= rows * columns):
            raise DecodeError(f"rank {rank} is too large for a matrix of {rows} by {columns}")
        ranks.append(rank)
    return tuple(ranks)


def _read_values(reader: Reader, count: int) -> Vector:
    if reader.remaining != 4 * count:
        raise DecodeError(f"{count} values take {4 * count} bytes, got {reader.remaining}")
    return check_floats(reader.floats(count), lambda i: f"value {i}")


def _check_factor(values: Vector, limit: np.float32) -> None:
    if values.size and np.abs(values).max() > limit:
        raise DecodeError(f"a factor has an entry beyond {limit}")
