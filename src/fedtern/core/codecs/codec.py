"""What a codec promises."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout
from fedtern.core.updates import Update
from fedtern.core.wire import Reader

T = TypeVar("T")


class Codec(Protocol):
    """Writes an update as bytes and reads the very same update back.

    The first byte is the codec's id: two codecs share an id if and only if either reads what the
    other wrote. ``decode`` knows how large the model is, allocates no more than that, and raises
    ``DecodeError`` for anything it did not write.
    """

    part_id: ClassVar[str]

    def encode(self, update: Update, layout: Layout) -> bytes:
        """The update as bytes."""
        ...

    def decode(self, data: bytes, layout: Layout) -> Update:
        """The update that was encoded."""
        ...


class NamedCodec(Codec, Protocol):
    """A codec of one format, with what it is called on the wire and among people."""

    @property
    def id(self) -> int:
        """The first byte of everything it writes."""
        ...

    @property
    def name(self) -> str:
        """What a person would call it."""
        ...


def expect(update: object, kind: type[T]) -> T:
    """Refuse to encode what a codec is not for."""
    if not isinstance(update, kind):
        raise TypeError(f"this codec writes {kind.__name__} updates, got {type(update).__name__}")
    return update


def open_payload(data: bytes, wanted: int) -> Reader:
    """A reader past the id, which must be the wanted one."""
    reader = Reader(data)
    if (found := reader.byte()) != wanted:
        raise DecodeError(f"expected codec {wanted}, got {found}")
    return reader
