"""The two messages that make up a round. ``docs/format.md`` is this module in prose."""

from __future__ import annotations

from dataclasses import dataclass

from fedtern.codecs import NothingCodec
from fedtern.envelope import BROADCAST, UPLOAD, seal
from fedtern.errors import DecodeError
from fedtern.protocol.terms import Terms
from fedtern.updates import Update
from fedtern.wire import Reader, ids, u32


@dataclass(frozen=True)
class Upload:
    """A client's update to the weights of one round."""

    round: int
    update: Update

    @staticmethod
    def seal(round: int, payload: bytes, terms: Terms) -> bytes:
        """The message; ``payload`` is what the method's codec wrote."""
        return seal(UPLOAD, terms.digest + u32(round) + payload)

    @classmethod
    def open(cls, data: bytes, terms: Terms) -> Upload:
        """Read and check everything."""
        _, reader = terms.open(data, UPLOAD)
        round = reader.u32()
        return cls(round, terms.method.up.codec.decode(reader.rest(), terms.layout))


@dataclass(frozen=True)
class Broadcast:
    """The one message of a round, the same for every client."""

    round: int
    update: Update
    counted: frozenset[int]  # whose uploads are in it
    cohort: frozenset[int] | None  # who may upload in the next round; None for anybody
    data: bytes

    @staticmethod
    def seal(
        round: int,
        payload: bytes,
        counted: frozenset[int],
        cohort: frozenset[int] | None,
        terms: Terms,
    ) -> bytes:
        """The message; ``payload`` is what the method's codec wrote."""
        chosen = b"\0" if cohort is None else b"\1" + ids(cohort)
        return seal(BROADCAST, terms.digest + u32(round) + ids(counted) + chosen + payload)

    @classmethod
    def open(cls, data: bytes, terms: Terms) -> Broadcast:
        """Read and check everything."""
        _, reader = terms.open(data, BROADCAST)
        return cls.read(reader, data, terms)

    @classmethod
    def read(cls, reader: Reader, data: bytes, terms: Terms) -> Broadcast:
        """Read what follows the terms; ``data`` is the whole message."""
        round = reader.u32()
        counted = frozenset(reader.ids())
        chosen = reader.byte()
        if chosen > 1:
            raise DecodeError(f"expected 0 or 1 before the cohort, got {chosen}")
        cohort = frozenset(reader.ids()) if chosen else None
        payload = reader.rest()
        codec = NothingCodec() if payload[:1] == b"\0" else terms.method.down.codec
        return cls(round, codec.decode(payload, terms.layout), counted, cohort, data)
