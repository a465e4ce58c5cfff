"""The messages of a round; ``docs/format.md`` specifies their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedtern.core.carried import NO_VALUES, Values, encode_carried, read_carried
from fedtern.core.codecs import NothingCodec
from fedtern.core.envelope import BROADCAST, COHORT_NOTICE, UPLOAD, seal
from fedtern.core.errors import DecodeError
from fedtern.core.protocol.terms import STAMP_BYTES, Header, Terms
from fedtern.core.updates import Update, max_magnitude
from fedtern.core.wire import Reader, ids

MAX_UPLOAD_MAGNITUDE = 2.0**64
"""Far above any weight, and so far below 2**100 that no single client can make a sum reach it."""


@dataclass(frozen=True)
class Upload:
    """A client's update of the weights of one round.

    Attributes:
        header: the header.
        update: the change of the weights.
        carried: the carried tensors that training has changed.

    """

    header: Header
    update: Update
    carried: Values

    @staticmethod
    def seal(
        stamp: bytes, round: int, payload: bytes, terms: Terms, carried: Values = NO_VALUES
    ) -> bytes:
        """Return the message with the given payload, which the method's codec has encoded."""
        section = encode_carried(carried, terms.layout)
        return seal(UPLOAD, terms.header(stamp, round), section, payload)

    @classmethod
    def open(cls, data: bytes, terms: Terms) -> Upload:
        """Read an upload.

        Raises:
            DecodeError: the bytes are not an upload, or the method does not make such updates.
            RemoteProtocolError: the peer has another layout or method.

        """
        header, reader = cls.open_header(data, terms)
        return cls.read(header, reader, terms)

    @staticmethod
    def open_header(data: bytes, terms: Terms) -> tuple[Header, Reader]:
        """Read the header and check the length; return it and a reader of the bytes after it.

        Raises:
            DecodeError: the bytes are not an upload, or too many.
            RemoteProtocolError: the peer has another layout or method.

        """
        # First, so that a client with another method gets an error that says so.
        opened = terms.open(data, UPLOAD)
        most = terms.max_upload_bytes
        if most is not None and len(data) > most:
            raise DecodeError(
                f"the upload has {len(data)} bytes, the method's uploads have at most {most}"
            )
        return opened

    @classmethod
    def read(cls, header: Header, reader: Reader, terms: Terms) -> Upload:
        """Read the bytes after the header.

        Raises:
            DecodeError: the bytes are malformed, or the method does not make such updates.

        """
        carried = read_carried(reader, terms.layout)
        update = terms.method.up.codec.decode(reader.rest(), terms.layout)
        # Before the values are computed, which takes long for matrices of a high rank.
        terms.upload_limits.check(update)
        magnitude = max_magnitude(update)
        if magnitude > MAX_UPLOAD_MAGNITUDE:
            raise DecodeError(f"the largest value of an upload is 2**64, got {magnitude}")
        return cls(header, update, carried)


@dataclass(frozen=True)
class Broadcast:
    """The result of a round, the same message for every client.

    Attributes:
        header: the header.
        update: the change of the weights.
        counted: the clients whose uploads were counted.
        cohort: the clients that may upload in the next round; None if all may.
        carried: the carried tensors that this round has changed.
        data: the message as bytes.
        capped: for each client whose upload was above a cap, the share of its influence that
            counts. Only the server that made the broadcast knows it: it is not in the message.

    """

    header: Header
    update: Update
    counted: frozenset[int]
    cohort: frozenset[int] | None
    carried: Values
    data: bytes
    capped: Mapping[int, float] = field(default_factory=dict)

    @property
    def round(self) -> int:
        """The round that the broadcast ends."""
        return self.header.round

    @property
    def next_stamp(self) -> bytes:
        """The stamp of the history after this broadcast."""
        return stamp_after(self.data)

    def check_followed(self, stamp: bytes, owner: str) -> None:
        """Check that ``stamp`` is of the history that ends with this broadcast.

        Raises:
            RemoteProtocolError: it is another history of the same length.

        """
        Header(COHORT_NOTICE, self.next_stamp, self.round + 1).check_history(stamp, owner)

    @staticmethod
    def seal(
        stamp: bytes,
        round: int,
        payload: bytes,
        counted: frozenset[int],
        cohort: frozenset[int] | None,
        terms: Terms,
        carried: Values = NO_VALUES,
    ) -> bytes:
        """Return the message with the given payload, which the method's codec has encoded."""
        clients = ids(counted) + _encode_cohort(cohort)
        section = encode_carried(carried, terms.layout)
        return seal(BROADCAST, terms.header(stamp, round), clients, section, payload)

    @classmethod
    def open(cls, data: bytes, terms: Terms) -> Broadcast:
        """Read a broadcast.

        Raises:
            DecodeError: the bytes are not a broadcast.
            RemoteProtocolError: the peer has another layout or method.

        """
        header, reader = terms.open(data, BROADCAST)
        return cls.read(header, reader, data, terms)

    @classmethod
    def read(cls, header: Header, reader: Reader, data: bytes, terms: Terms) -> Broadcast:
        """Read the bytes after the header; ``data`` is the whole message."""
        counted = frozenset(reader.ids())
        cohort = read_cohort(reader)
        carried = read_carried(reader, terms.layout)
        payload = reader.rest()
        codec = NothingCodec() if payload[:1] == b"\0" else terms.method.down.codec
        update = codec.decode(payload, terms.layout)
        return cls(header, update, counted, cohort, carried, data)


@dataclass(frozen=True)
class CohortNotice:
    """Names the clients that may upload in the server's current round.

    A broadcast names them, too. A notice is for the first round, which no broadcast precedes, and
    for broadcasts that are too long for a transport.

    Attributes:
        header: the header.
        cohort: the clients that may upload; None if all may.

    """

    header: Header
    cohort: frozenset[int] | None

    @staticmethod
    def seal(stamp: bytes, round: int, cohort: frozenset[int] | None, terms: Terms) -> bytes:
        """Return the message as bytes."""
        return seal(COHORT_NOTICE, terms.header(stamp, round) + _encode_cohort(cohort))

    @classmethod
    def open(cls, data: bytes, terms: Terms) -> CohortNotice:
        """Read a notice, or the part of a broadcast that names the next round's cohort.

        Raises:
            DecodeError: the bytes are neither a notice nor a broadcast.
            RemoteProtocolError: the peer has another layout or method.

        """
        header, reader = terms.open(data, COHORT_NOTICE, BROADCAST)
        if header.kind == COHORT_NOTICE:
            return cls.read(header, reader)
        reader.ids()  # the clients whose uploads were counted
        next_header = Header(COHORT_NOTICE, stamp_after(data), header.round + 1)
        return cls(next_header, read_cohort(reader))

    @classmethod
    def read(cls, header: Header, reader: Reader) -> CohortNotice:
        """Read the bytes after the header of a notice."""
        notice = cls(header, read_cohort(reader))
        reader.end()
        return notice


def stamp_after(broadcast: bytes) -> bytes:
    """Return the stamp of the history after a broadcast: the first bytes of its checksum."""
    return broadcast[-4:][:STAMP_BYTES]


def _encode_cohort(cohort: frozenset[int] | None) -> bytes:
    return b"\0" if cohort is None else b"\1" + ids(cohort)


def read_cohort(reader: Reader) -> frozenset[int] | None:
    """Read the clients that may upload; None if all may."""
    flag = reader.byte()
    if flag > 1:
        raise DecodeError(f"expected 0 or 1 before the cohort, got {flag}")
    return frozenset(reader.ids()) if flag else None
