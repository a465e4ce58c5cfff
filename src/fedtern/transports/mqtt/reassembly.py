"""Catch-ups in chunks that fit into the packets of a broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout
from fedtern.core.wire import Reader, varint


@dataclass(frozen=True)
class Chunk:
    """Part of a catch-up.

    Attributes:
        number: index of the chunk, from 0.
        count: number of chunks of the catch-up.
        invited: whether the client should train in the round that the catch-up leads to.
        ended: whether no other round follows.
        data: bytes of the catch-up.

    """

    number: int
    count: int
    invited: bool
    ended: bool
    data: bytes

    def write(self) -> bytes:
        """Return ``varint number | varint count | byte invited + 2 x ended | data``."""
        flags = bytes([self.invited + 2 * self.ended])
        return varint(self.number) + varint(self.count) + flags + self.data

    @classmethod
    def read(cls, payload: bytes) -> Chunk:
        """Reverse ``write``."""
        reader = Reader(payload)
        number = reader.varint()
        count = reader.varint()
        flags = reader.byte()
        if number >= count or flags > 3:
            raise DecodeError(f"invalid chunk {number} of {count} with flags {flags}")
        return cls(number, count, bool(flags & 1), bool(flags & 2), reader.rest())


def split(data: bytes, limit: int, *, invited: bool, ended: bool) -> Iterator[Chunk]:
    """Split a catch-up into chunks of at most ``limit`` bytes of data."""
    parts = [data[start : start + limit] for start in range(0, len(data), limit)]
    for number, part in enumerate(parts):
        yield Chunk(number, len(parts), invited, ended, part)


class Reassembly:
    """Collects the chunks of one catch-up, up to the largest size that a catch-up can have.

    Args:
        layout: the model, which bounds the size.

    """

    def __init__(self, layout: Layout) -> None:
        # No catch-up is larger than the model, which can come with sums of signs.
        self.max_bytes = 2 * (4 * layout.size + 8 * len(layout.names)) + 4096
        self.size = 0  # bytes so far
        self._chunks: list[bytes] = []
        self._most_chunks = 0  # largest number of chunks at once since the last request

    def clear(self) -> None:
        """Drop all chunks."""
        self._chunks = []
        self.size = 0

    def start_request(self) -> None:
        """Drop all chunks: the client asks for another catch-up."""
        self.clear()
        self._most_chunks = 0

    def add(self, chunk: Chunk) -> bool:
        """Add a chunk.

        Returns:
            Whether there are more chunks now than at any time since the last request.

        Raises:
            DecodeError: the chunk is empty, or the catch-up is larger than it can be.

        """
        if chunk.number != len(self._chunks):
            self.clear()  # part of another catch-up, or a chunk before it was lost
            if chunk.number:
                return False
        # Empty chunks are refused, because any number of them would fit.
        if not chunk.data or self.size + len(chunk.data) > self.max_bytes:
            self.clear()
            raise DecodeError(
                f"chunk {chunk.number} of {chunk.count} with {len(chunk.data)} bytes does not fit a"
                f" catch-up of this model, which has at most {self.max_bytes} bytes"
            )
        self._chunks.append(chunk.data)
        self.size += len(chunk.data)
        more = len(self._chunks) > self._most_chunks
        self._most_chunks = max(self._most_chunks, len(self._chunks))
        return more

    def take(self, count: int) -> bytes | None:
        """Return the catch-up and drop its chunks; None unless there are ``count`` chunks."""
        if len(self._chunks) != count:
            return None
        data = b"".join(self._chunks)
        self.clear()
        return data
