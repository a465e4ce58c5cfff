"""The messages that make up a round. ``docs/format.md`` is this module in prose."""

from __future__ import annotations

from dataclasses import dataclass

from fedtern.core.codecs import NothingCodec
from fedtern.core.envelope import BROADCAST, COHORT_NOTICE, UPLOAD, seal
from fedtern.core.errors import DecodeError
from fedtern.core.protocol.terms import STAMP, Head, Terms
from fedtern.core.updates import Update, max_magnitude
from fedtern.core.wire import Reader, ids

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
        if max_magnitude(update) > LARGEST_UPLOAD:
            raise DecodeError(f"an upload's values end at 2**64, got {max_magnitude(update)}")
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

    def check_followed(self, stamp: bytes, who: str) -> None:
        """Raise unless the history that ends with this broadcast is the one of ``stamp``.

        Raises:
            RemoteProtocolError: it is another history of the same length.

        """
        Head(COHORT_NOTICE, self.next_stamp, self.round + 1).check_history(stamp, who)

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
        chosen = _write_cohort(cohort)
        return seal(BROADCAST, terms.head(stamp, round) + ids(counted) + chosen + payload)

    @classmethod
    def open(cls, data: bytes, terms: Terms) -> Broadcast:
        """Read and check everything."""
        return cls.read(*terms.open(data, BROADCAST), data, terms)

    @classmethod
    def read(cls, head: Head, reader: Reader, data: bytes, terms: Terms) -> Broadcast:
        """Read what follows the head; ``data`` is the whole message."""
        counted, cohort = frozenset(reader.ids()), read_cohort(reader)
        payload = reader.rest()
        codec = NothingCodec() if payload[:1] == b"\0" else terms.method.down.codec
        return cls(head, codec.decode(payload, terms.layout), counted, cohort, data)


@dataclass(frozen=True)
class CohortNotice:
    """Names the clients that may upload to the server's current round.

    A broadcast names them, too. A notice is for the first round, which no broadcast precedes, and
    for broadcasts that are longer than a transport can carry.
    """

    head: Head
    cohort: frozenset[int] | None  # None if every client may upload

    @staticmethod
    def seal(stamp: bytes, round: int, cohort: frozenset[int] | None, terms: Terms) -> bytes:
        """Return the message as bytes."""
        return seal(COHORT_NOTICE, terms.head(stamp, round) + _write_cohort(cohort))

    @classmethod
    def open(cls, data: bytes, terms: Terms) -> CohortNotice:
        """Read a notice, or the part of a broadcast that names the next round's cohort."""
        head, reader = terms.open(data, COHORT_NOTICE, BROADCAST)
        if head.kind == COHORT_NOTICE:
            return cls.read(head, reader)
        reader.ids()
        return cls(Head(COHORT_NOTICE, data[-4:][:STAMP], head.round + 1), read_cohort(reader))

    @classmethod
    def read(cls, head: Head, reader: Reader) -> CohortNotice:
        """Read the body that follows the head of a notice."""
        notice = cls(head, read_cohort(reader))
        reader.end()
        return notice


def _write_cohort(cohort: frozenset[int] | None) -> bytes:
    return b"\0" if cohort is None else b"\1" + ids(cohort)


def read_cohort(reader: Reader) -> frozenset[int] | None:
    """Who may upload; None for anybody."""
    chosen = reader.byte()
    if chosen > 1:
        raise DecodeError(f"expected 0 or 1 before the cohort, got {chosen}")
    return frozenset(reader.ids()) if chosen else None
