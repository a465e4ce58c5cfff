"""Codecs of updates without positions: no change, dense, and signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedtern.core.codecs.codec import check_kind, open_payload
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout
from fedtern.core.updates import Dense, Limits, Signs, Sparse, Update
from fedtern.core.wire import Reader, check_floats, f32, floats_view


@dataclass(frozen=True)
class NothingCodec:
    """Codec of updates that change nothing.

    Format: ``id``.
    """

    part_id: ClassVar[str] = "nothing"
    id: ClassVar[int] = 0
    name: ClassVar[str] = "no change"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode an empty update as one byte."""
        count = check_kind(update, Sparse).indices.size
        if count:
            raise TypeError(f"this codec writes updates without entries, got {count} entries")
        return bytes([self.id])

    def decode(self, data: bytes, layout: Layout) -> Sparse:
        """Decode an empty update."""
        open_payload(data, self.id).end()
        return Sparse.empty(layout.size)


@dataclass(frozen=True)
class DenseCodec:
    """Codec of dense updates.

    Format: ``id | float32 values``.
    """

    part_id: ClassVar[str] = "dense"
    id: ClassVar[int] = 1
    name: ClassVar[str] = "dense"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode all values with four bytes per parameter."""
        return b"".join((bytes([self.id]), floats_view(check_kind(update, Dense).values)))

    def decode(self, data: bytes, layout: Layout) -> Dense:
        """Decode one value per parameter of the layout."""
        if len(data) != 1 + 4 * layout.size:
            raise DecodeError(
                f"a dense update of {layout.size} parameters has {1 + 4 * layout.size} bytes,"
                f" got {len(data)}"
            )
        return self.read(Reader(data), layout)

    def read(self, reader: Reader, layout: Layout) -> Dense:
        """Like ``decode``, from a reader of a longer message.

        Raises:
            DecodeError: the next bytes are not a dense update.

        """
        if (codec := reader.byte()) != self.id:
            raise DecodeError(f"expected codec {self.id}, got {codec}")
        return Dense(check_floats(reader.floats(layout.size), layout.name_at))

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        return 1 + 4 * layout.size


@dataclass(frozen=True)
class SignsCodec:
    """Codec of sign updates.

    Format: ``id | step | one bit per parameter``.
    """

    part_id: ClassVar[str] = "signs"
    id: ClassVar[int] = 5
    name: ClassVar[str] = "signs"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode the step, and the signs with one bit per parameter."""
        signs = check_kind(update, Signs)
        return bytes([self.id]) + f32(signs.step) + signs.bits.tobytes()

    def decode(self, data: bytes, layout: Layout) -> Signs:
        """Decode one sign per parameter of the layout."""
        reader = open_payload(data, self.id)
        step = reader.f32()
        bits = reader.bits(layout.size)
        reader.end()
        return Signs(layout.size, bits, step)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        return 1 + 4 + (layout.size + 7) // 8
