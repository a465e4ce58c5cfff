"""Interfaces of codecs."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout
from fedtern.core.updates import Limits, Update
from fedtern.core.updates.limits import EntryLimits
from fedtern.core.wire import Reader

T = TypeVar("T")


class Codec(Protocol):
    """Encodes an update as bytes, without loss.

    The first byte is the codec's id. Two codecs share an id if and only if each can decode the
    other's bytes.

    Attributes:
        part_id: a name that never changes, on the wire and on disk.

    """

    part_id: ClassVar[str]

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode an update.

        Raises:
            TypeError: the codec is not for updates of this kind.

        """
        ...

    def decode(self, data: bytes, layout: Layout) -> Update:
        """Decode an update; allocates no more memory than the layout requires.

        Raises:
            DecodeError: the bytes were not written by this codec for this layout.

        """
        ...


@runtime_checkable
class BoundedCodec(Protocol):
    """A codec that states the length of its longest payload. All codecs of this package do."""

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        ...


class NamedCodec(Codec, Protocol):
    """A codec of a single format."""

    @property
    def id(self) -> int:
        """The first byte of the encoded update."""
        ...

    @property
    def name(self) -> str:
        """The name to display."""
        ...


def check_kind(update: object, kind: type[T]) -> T:
    """Return the update if it is of the given kind, else raise a ``TypeError``."""
    if not isinstance(update, kind):
        raise TypeError(f"this codec writes {kind.__name__} updates, got {type(update).__name__}")
    return update


MAX_VARINT_BYTES = 10


def max_entries(limits: Limits, layout: Layout) -> int:
    """Return the largest number of positions of an update within limits."""
    return limits.total if isinstance(limits, EntryLimits) else layout.size


def open_payload(data: bytes, codec_id: int) -> Reader:
    """Check the id at the start of a payload and return a reader of the bytes after it."""
    reader = Reader(data)
    if (found := reader.byte()) != codec_id:
        raise DecodeError(f"expected codec {codec_id}, got {found}")
    return reader
