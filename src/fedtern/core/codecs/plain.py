"""Updates that need no positions: nothing, everything, and signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedtern.core.codecs.codec import expect, open_payload
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout
from fedtern.core.updates import Dense, Signs, Sparse, Update
from fedtern.core.wire import check_floats, f32, floats


@dataclass(frozen=True)
class NothingCodec:
    """``id``: the update that changes nothing."""

    part_id: ClassVar[str] = "nothing"
    id: ClassVar[int] = 0
    name: ClassVar[str] = "nothing"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """One byte."""
        if expect(update, Sparse).indices.size:
            raise TypeError("this codec writes updates that change nothing")
        return bytes([self.id])

    def decode(self, data: bytes, layout: Layout) -> Sparse:
        """An empty update."""
        open_payload(data, self.id).end()
        return Sparse.empty(layout.size)


@dataclass(frozen=True)
class DenseCodec:
    """``id | float32 values``."""

    part_id: ClassVar[str] = "dense"
    id: ClassVar[int] = 1
    name: ClassVar[str] = "dense"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Four bytes a parameter."""
        return bytes([self.id]) + floats(expect(update, Dense).values)

    def decode(self, data: bytes, layout: Layout) -> Dense:
        """As many values as the layout has."""
        if len(data) != 1 + 4 * layout.size:
            raise DecodeError(
                f"a dense update of {layout.size} parameters has {1 + 4 * layout.size} bytes,"
                f" got {len(data)}"
            )
        values = open_payload(data, self.id).floats(layout.size)
        return Dense(check_floats(values, layout.name_at))


@dataclass(frozen=True)
class SignsCodec:
    """``id | step | one bit a parameter``."""

    part_id: ClassVar[str] = "signs"
    id: ClassVar[int] = 5
    name: ClassVar[str] = "signs"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """One bit a parameter, and the step."""
        signs = expect(update, Signs)
        return bytes([self.id]) + f32(signs.step) + signs.bits.tobytes()

    def decode(self, data: bytes, layout: Layout) -> Signs:
        """As many signs as the layout has parameters."""
        reader = open_payload(data, self.id)
        step = reader.f32()
        bits = reader.bits(layout.size)
        reader.end()
        return Signs(layout.size, bits, step)
