"""Codecs of updates that depend on a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.core.codecs.codec import MAX_VARINT_BYTES, check_kind, open_payload
from fedtern.core.errors import DecodeError
from fedtern.core.kernels import pack_levels, unpack_levels
from fedtern.core.layout import Layout
from fedtern.core.updates import Limits, Masked, Rotated, Sketched, Update
from fedtern.core.updates.limits import SeededLimits
from fedtern.core.updates.seeded import CENTROIDS, block_lengths
from fedtern.core.wire import check_floats, floats, u64, varint


@dataclass(frozen=True)
class MaskedCodec:
    """Codec of masked updates.

    Format: ``id | seed | count | float32 values``.
    """

    part_id: ClassVar[str] = "masked"
    id: ClassVar[int] = 14
    name: ClassVar[str] = "masked"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode the seed with eight bytes, and the values with four bytes each."""
        masked = check_kind(update, Masked)
        head = bytes([self.id]) + u64(masked.seed) + varint(masked.values.size)
        return head + floats(masked.values)

    def decode(self, data: bytes, layout: Layout) -> Masked:
        """Decode at most as many values as the layout has parameters."""
        reader = open_payload(data, self.id)
        seed = reader.u64()
        count = reader.varint()
        if count > layout.size:
            raise DecodeError(f"{count} values do not fit {layout.size} parameters")
        values = check_floats(reader.floats(count), lambda i: f"value {i}")
        reader.end()
        return Masked(layout.size, seed, values)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        count = limits.count if isinstance(limits, SeededLimits) else layout.size
        return 1 + 8 + MAX_VARINT_BYTES + 4 * count


@dataclass(frozen=True)
class SketchedCodec:
    """Codec of sketched updates.

    Format: ``id | seed | kept | bits | low of each block | high of each block | levels``.
    """

    part_id: ClassVar[str] = "sketched"
    id: ClassVar[int] = 16
    name: ClassVar[str] = "sketched"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode levels with ``bits`` bits each, and eight bytes per block."""
        sketch = check_kind(update, Sketched)
        packed = np.zeros((sketch.levels.size * sketch.bits + 7) // 8, np.uint8)
        pack_levels(sketch.levels, sketch.bits, packed)
        head = bytes([self.id]) + u64(sketch.seed) + varint(sketch.kept) + bytes([sketch.bits])
        return head + floats(sketch.lows) + floats(sketch.highs) + packed.tobytes()

    def decode(self, data: bytes, layout: Layout) -> Sketched:
        """Decode the blocks of at most as many values as the layout has parameters."""
        reader = open_payload(data, self.id)
        seed = reader.u64()
        kept = reader.varint()
        bits = reader.byte()
        if not 1 <= bits <= 16:
            raise DecodeError(f"expected from 1 to 16 bits per value, got {bits}")
        if kept > min(layout.size, 8 * reader.remaining):
            raise DecodeError(
                f"{kept} values do not fit {layout.size} parameters and {reader.remaining} bytes"
            )
        lengths = block_lengths(kept)
        lows = check_floats(reader.floats(len(lengths)), lambda i: f"low of block {i}")
        highs = check_floats(reader.floats(len(lengths)), lambda i: f"high of block {i}")
        if (lows > highs).any():
            raise DecodeError("the low of a block is above its high")
        packed = reader.bits(sum(lengths) * bits)
        reader.end()
        levels = np.empty(sum(lengths), np.int32)
        unpack_levels(np.concatenate([packed, np.zeros(8, np.uint8)]), bits, levels)
        return Sketched(layout.size, seed, kept, bits, levels, lows, highs)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        count, bits = layout.size, 16
        if isinstance(limits, SeededLimits):
            count, bits = limits.count, limits.bits or 16
        lengths = block_lengths(count)
        blocks = 8 * len(lengths) + (sum(lengths) * bits + 7) // 8
        return 1 + 8 + MAX_VARINT_BYTES + 1 + blocks


@dataclass(frozen=True)
class RotatedCodec:
    """Codec of rotated updates.

    Format: ``id | seed | bits | scale of each block | levels``.
    """

    part_id: ClassVar[str] = "rotated"
    id: ClassVar[int] = 32
    name: ClassVar[str] = "rotated"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode levels with ``bits`` bits each, and four bytes per block."""
        rotated = check_kind(update, Rotated)
        packed = np.zeros((rotated.levels.size * rotated.bits + 7) // 8, np.uint8)
        pack_levels(rotated.levels, rotated.bits, packed)
        head = bytes([self.id]) + u64(rotated.seed) + bytes([rotated.bits])
        return head + floats(rotated.scales) + packed.tobytes()

    def decode(self, data: bytes, layout: Layout) -> Rotated:
        """Decode a level for each parameter of the layout, in blocks."""
        reader = open_payload(data, self.id)
        seed = reader.u64()
        bits = reader.byte()
        if bits not in CENTROIDS:
            raise DecodeError(f"expected from 1 to {max(CENTROIDS)} bits per value, got {bits}")
        lengths = block_lengths(layout.size)
        scales = check_floats(reader.floats(len(lengths)), lambda i: f"scale of block {i}")
        if np.signbit(scales).any():
            raise DecodeError("the scale of a block is negative")
        packed = reader.bits(sum(lengths) * bits)
        reader.end()
        levels = np.empty(sum(lengths), np.int32)
        unpack_levels(np.concatenate([packed, np.zeros(8, np.uint8)]), bits, levels)
        return Rotated(layout.size, seed, bits, levels, scales)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        bits = limits.bits if isinstance(limits, SeededLimits) and limits.bits else max(CENTROIDS)
        lengths = block_lengths(layout.size)
        return 1 + 8 + 1 + 4 * len(lengths) + (sum(lengths) * bits + 7) // 8
