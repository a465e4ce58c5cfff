"""Codecs of updates on a grid, with few bits per level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.codecs.codec import MAX_VARINT_BYTES, check_kind, open_payload
from fedtern.core.errors import DecodeError
from fedtern.core.kernels import (
    decode_levels,
    encode_levels,
    measure_levels,
    pack_levels,
    unpack_levels,
)
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Levels, Limits, Update
from fedtern.core.updates.levels import bucket_ends
from fedtern.core.updates.limits import LevelLimits
from fedtern.core.wire import Reader, check_floats, floats, varint

# 17 ternary digits fit in 27 bits: 1.588 bits per level, where log2(3) is 1.585.
_GROUP = 17
_GROUP_BITS = 27
_POWERS = 3 ** np.arange(_GROUP, dtype=np.int64)

_SPARSE = 1  # flag of Elias-coded levels
_MAX_STEPS = 1 << 20


@dataclass(frozen=True)
class TritsCodec:
    """Codec of ternary levels.

    Format: ``id | one scale per tensor | 17 levels of -1, 0 and 1 in 27 bits``.
    """

    part_id: ClassVar[str] = "trits"
    id: ClassVar[int] = 10
    name: ClassVar[str] = "trits"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode levels with 1.588 bits per parameter, and four bytes per tensor."""
        levels = _check_single_step(update, layout)
        groups = -(-layout.size // _GROUP)
        trits = np.zeros(groups * _GROUP, np.int64)
        trits[: layout.size] = levels.levels + 1
        packed = np.zeros((groups * _GROUP_BITS + 7) // 8, np.uint8)
        numbers = trits.reshape(groups, _GROUP) @ _POWERS
        pack_levels(numbers.astype(np.int32), _GROUP_BITS, packed)
        return bytes([self.id]) + floats(levels.scales) + packed.tobytes()

    def decode(self, data: bytes, layout: Layout) -> Levels:
        """Decode one level per parameter of the layout."""
        reader = open_payload(data, self.id)
        scales = _read_scales(reader, layout.ends.size)
        groups = -(-layout.size // _GROUP)
        packed = reader.bits(groups * _GROUP_BITS)
        reader.end()
        numbers = np.empty(groups, np.int32)
        unpack_levels(np.concatenate([packed, np.zeros(8, np.uint8)]), _GROUP_BITS, numbers)
        if groups and numbers.max() >= 3**_GROUP:
            raise DecodeError(f"a group of levels must be below 3**{_GROUP}, got {numbers.max()}")
        trits = (numbers[:, None] // _POWERS % 3).astype(np.int32).reshape(-1)
        if trits[layout.size :].any():
            raise DecodeError(f"levels after the last of {layout.size} parameters")
        levels = trits[: layout.size] - np.int32(1)
        _check_zero_scales(levels, scales, layout.ends)
        return Levels(layout.size, levels, scales, layout.ends, 1)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        groups = -(-layout.size // _GROUP)
        return 1 + 4 * layout.ends.size + (groups * _GROUP_BITS + 7) // 8


@dataclass(frozen=True)
class TensorSignsCodec:
    """Codec of signs by tensor.

    Format: ``id | one scale per tensor | one bit per parameter``.
    """

    part_id: ClassVar[str] = "tensor_signs"
    id: ClassVar[int] = 12
    name: ClassVar[str] = "signs, by tensor"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode levels with one bit per parameter, and four bytes per tensor."""
        levels = _check_single_step(update, layout)
        if not levels.levels.all():
            raise TypeError("this codec writes levels of -1 and 1, got a 0")
        signs = np.packbits(levels.levels > 0, bitorder="little")
        return bytes([self.id]) + floats(levels.scales) + signs.tobytes()

    def decode(self, data: bytes, layout: Layout) -> Levels:
        """Decode one sign per parameter of the layout."""
        reader = open_payload(data, self.id)
        scales = _read_scales(reader, layout.ends.size)
        signs = np.unpackbits(reader.bits(layout.size), count=layout.size, bitorder="little")
        reader.end()
        levels = 2 * signs.astype(np.int32) - np.int32(1)
        return Levels(layout.size, levels, scales, layout.ends, 1)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        return 1 + 4 * layout.ends.size + (layout.size + 7) // 8


@dataclass(frozen=True)
class EliasCodec:
    """Codec of levels in Elias omega code.

    Format: ``id | flags | steps | bucket | scales | non-zeros, if sparse | Elias-coded levels``.

    A bucket of 0 means that the segments are the layout's tensors.
    """

    part_id: ClassVar[str] = "elias"
    id: ClassVar[int] = 11
    name: ClassVar[str] = "levels"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode all levels, or the non-zeros and their distances, whichever is shorter."""
        levels = check_kind(update, Levels)
        dense_bits = int(measure_levels(levels.levels, False))
        sparse_bits = int(measure_levels(levels.levels, True))
        sparse = sparse_bits < dense_bits
        packed = np.zeros((min(dense_bits, sparse_bits) + 7) // 8, np.uint8)
        encode_levels(levels.levels, sparse, packed)
        bucket = 0 if np.array_equal(levels.ends, layout.ends) else int(levels.ends[0])
        head = bytes([self.id, _SPARSE if sparse else 0]) + varint(levels.steps) + varint(bucket)
        count = varint(int(np.count_nonzero(levels.levels))) if sparse else b""
        return head + floats(levels.scales) + count + packed.tobytes()

    def decode(self, data: bytes, layout: Layout) -> Levels:
        """Decode one level per parameter of the layout."""
        reader = open_payload(data, self.id)
        if (flags := reader.byte()) > _SPARSE:
            raise DecodeError(f"unknown flags {flags:#04x}")
        steps = reader.varint()
        bucket = reader.varint()
        if not 1 <= steps <= _MAX_STEPS:
            raise DecodeError(f"expected from 1 to {_MAX_STEPS} steps, got {steps}")
        # Checked before the scales are allocated.
        if bucket > layout.size or (bucket and 4 * -(-layout.size // bucket) > reader.remaining):
            raise DecodeError(
                f"buckets of {bucket} do not fit {layout.size} parameters and"
                f" {reader.remaining} bytes"
            )
        ends = bucket_ends(layout.size, bucket) if bucket else layout.ends
        if bucket and np.array_equal(ends, layout.ends):
            raise DecodeError(f"buckets of {bucket} equal the tensors and must be written as 0")
        scales = _read_scales(reader, ends.size)
        count = reader.varint() if flags else layout.size
        if count > min(layout.size, 8 * reader.remaining):
            raise DecodeError(
                f"{count} levels do not fit {layout.size} parameters and {reader.remaining} bytes"
            )
        packed = np.frombuffer(reader.rest(), np.uint8)
        levels = np.zeros(layout.size, np.int32)
        used = int(decode_levels(packed, bool(flags), count, steps, levels))
        if used < 0:
            raise DecodeError(f"levels run past the end, or a level is above {steps}")
        if packed.size != (used + 7) // 8 or (used % 8 and packed[-1] >> (used % 8)):
            raise DecodeError("bits after the last level")
        _check_zero_scales(levels, scales, ends)
        return Levels(layout.size, levels, scales, ends, steps)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        steps, segments = _MAX_STEPS, layout.size
        if isinstance(limits, LevelLimits):
            steps, segments = limits.most_steps, limits.ends.size
        # The dense code of the highest level; a zero takes one bit.
        bits = int(measure_levels(np.array([steps], np.int32), False))
        head = 2 + 3 * MAX_VARINT_BYTES + 4 * segments
        return head + (layout.size * bits + 7) // 8


def _check_single_step(update: Update, layout: Layout) -> Levels:
    levels = check_kind(update, Levels)
    if levels.steps != 1 or not np.array_equal(levels.ends, layout.ends):
        raise TypeError("this codec writes levels of one step with one scale per tensor")
    return levels


def _read_scales(reader: Reader, count: int) -> Vector:
    scales = check_floats(reader.floats(count), lambda i: f"scale {i}")
    if (scales < 0).any() or np.signbit(scales).any():
        raise DecodeError("a scale is negative")
    return scales


def _check_zero_scales(levels: NDArray[np.int32], scales: Vector, ends: NDArray[np.int64]) -> None:
    """Refuse non-zero levels of zero scale: the same update could be written in several ways."""
    if not scales.all() and levels[np.repeat(scales == 0, np.diff(ends, prepend=0))].any():
        raise DecodeError("a level other than zero has a scale of zero")
