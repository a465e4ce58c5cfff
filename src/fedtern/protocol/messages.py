"""The two messages that make up a round. ``docs/format.md`` is this module in prose."""

from __future__ import annotations

from dataclasses import dataclass

from fedtern.codecs import NothingCodec
from fedtern.envelope import BROADCAST, UPLOAD, seal
from fedtern.errors import DecodeError
from fedtern.protocol.terms import STAMP, Head, Terms
from fedtern.updates import Update, largest
from fedtern.wire import Reader, ids

LARGEST_UPLOAD = 2.0**64
"""Far above any weight, and so far below 2**100 that no client alone can get the sum there."""


@dataclass(frozen=True)
class Upload:
    """A client's update to the weights of one round."""

    head: Head
    update: Update

    @staticmethod
    def seal(stamp: bytes, round: int, payload: bytes, terms: Terms) -> bytes:
        """The message; ``payload`` is what the method's codec wrote."""
        return seal(UPLOAD, terms.head(stamp, round) + payload)

    @classmethod
    def open(cls, data: bytes, terms: Terms) -> Upload:
        """Read and check everything."""
        head, reader = terms.open(data, UPLOAD)
        update = terms.method.up.codec.decode(reader.rest(), terms.layout)
        if largest(update) > LARGEST_UPLOAD:
            raise DecodeError(f"an upload's values end at 2**64, got {largest(update)}")
        return cls(head, update)


@dataclass(frozen=True)
class Broadcast:
    """The one message of a round, the same for every client."""

    head: Head
    update: Update
    counted: frozenset[int]  # whose uploads are in it
    cohort: frozenset[int] | None  # who may upload in the next round; None for anybody
    data: bytes

    @property
    def round(self) -> int:
        """The round that it ends."""
        return self.head.round

    @property
    def next_stamp(self) -> bytes:
        """The stamp of the history that ends with it."""
        return self.data[-4:][:STAMP]

    @staticmethod
    def seal(
        stamp: bytes,
        round: int,
        payload: bytes,
        counted: frozenset[int],
        cohort: frozenset[int] | None,
        terms: Terms,
    ) -> bytes:
        """The message; ``payload`` is what the method's codec wrote."""
        chosen = b"\0" if cohort is None else b"\1" + ids(cohort)
        return seal(BROADCAST, terms.head(stamp, round) + ids(counted) + chosen + payload)

    @classmethod
    def open(cls, data: bytes, terms: Terms) -> Broadcast:
        """Read and check everything."""
        return cls.read(*terms.open(data, BROADCAST), data, terms)

    @classmethod
    def read(cls, head: Head, reader: Reader, data: bytes, terms: Terms) -> Broadcast:
        """Read what follows the head; ``data`` is the whole message."""
        counted = frozenset(reader.ids())
        chosen = reader.byte()
        if chosen > 1:
            raise DecodeError(f"expected 0 or 1 before the cohort, got {chosen}")
        cohort = frozenset(reader.ids()) if chosen else None
        payload = reader.rest()
        codec = NothingCodec() if payload[:1] == b"\0" else terms.method.down.codec
        return cls(head, codec.decode(payload, terms.layout), counted, cohort, data)
