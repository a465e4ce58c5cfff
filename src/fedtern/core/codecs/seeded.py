"""Updates whose positions follow from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.core.codecs.codec import expect, open_payload
from fedtern.core.errors import DecodeError
from fedtern.core.kernels import pack_levels, unpack_levels
from fedtern.core.layout import Layout
from fedtern.core.updates import Masked, Sketched, Update
from fedtern.core.updates.seeded import block_lengths
from fedtern.core.wire import check_floats, floats, u64, varint


@dataclass(frozen=True)
class MaskedCodec:
    """``id | seed | count | float32 values``."""

    part_id: ClassVar[str] = "masked"
    id: ClassVar[int] = 14
    name: ClassVar[str] = "masked"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Four bytes a value and eight for all their positions."""
        masked = expect(update, Masked)
        head = bytes([self.id]) + u64(masked.seed) + varint(masked.values.size)
        return head + floats(masked.values)

    def decode(self, data: bytes, layout: Layout) -> Masked:
        """Values, not more than the layout has."""
        reader = open_payload(data, self.id)
        seed, count = reader.u64(), reader.varint()
        if count > layout.size:
            raise DecodeError(f"{count} values do not fit {layout.size} parameters")
        values = check_floats(reader.floats(count), lambda i: f"value {i}")
        reader.end()
        return Masked(layout.size, seed, values)


@dataclass(frozen=True)
class SketchedCodec:
    """``id | seed | kept | bits | low and high of each block | levels``."""

    part_id: ClassVar[str] = "sketched"
    id: ClassVar[int] = 16
    name: ClassVar[str] = "sketched"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """So many bits a value, and eight bytes a block."""
        sketch = expect(update, Sketched)
        packed = np.zeros((sketch.levels.size * sketch.bits + 7) // 8, np.uint8)
        pack_levels(sketch.levels, sketch.bits, packed)
        head = bytes([self.id]) + u64(sketch.seed) + varint(sketch.kept) + bytes([sketch.bits])
        return head + floats(sketch.lows) + floats(sketch.highs) + packed.tobytes()

    def decode(self, data: bytes, layout: Layout) -> Sketched:
        """Levels of the blocks that so many kept values make."""
        reader = open_payload(data, self.id)
        seed, kept, bits = reader.u64(), reader.varint(), reader.byte()
        if kept > min(layout.size, 8 * reader.left) or not 1 <= bits <= 16:
            raise DecodeError(f"{kept} values of {bits} bits do not fit {layout.size} parameters")
        lengths = block_lengths(kept)
        lows, highs = (
            check_floats(reader.floats(len(lengths)), lambda i: f"block {i}") for _ in range(2)
        )
        if (lows > highs).any():
            raise DecodeError("a block's low is above its high")
        packed = reader.bits(sum(lengths) * bits)
        reader.end()
        levels = np.empty(sum(lengths), np.int32)
        unpack_levels(np.concatenate([packed, np.zeros(8, np.uint8)]), bits, levels)
        return Sketched(layout.size, seed, kept, bits, levels, lows, highs)
