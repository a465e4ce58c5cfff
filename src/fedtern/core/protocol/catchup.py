"""What brings a client up to date that missed some rounds, or all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedtern.core.codecs import DenseCodec, SignCountsCodec, UpdateSequenceCodec
from fedtern.core.envelope import BROADCAST, CATCH_UP, COHORT_NOTICE, seal
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout, Vector
from fedtern.core.protocol.events import How
from fedtern.core.protocol.messages import Broadcast, CohortNotice
from fedtern.core.protocol.terms import STAMP, Head, Terms
from fedtern.core.updates import Dense
from fedtern.core.updates.sums import SignCounts, UpdateSequence
from fedtern.core.wire import Reader, varint

REPLAY, SUM, MODEL = 0, 1, 2
MODES = {REPLAY: How.REPLAY, SUM: How.SUM, MODEL: How.MODEL}


@dataclass(frozen=True)
class Replay:
    """The broadcasts that a client missed, as they were."""

    head: Head  # at round ``since``
    since: int
    broadcasts: tuple[bytes, ...]

    def opened(self, terms: Terms) -> Iterator[Broadcast]:
        """The broadcasts one by one: decoding all at once could take many times their bytes."""
        for data in self.broadcasts:
            yield Broadcast.open(data, terms)


@dataclass(frozen=True)
class Sum:
    """What a client missed, added up, and whether its last upload counted."""

    head: Head  # at round ``since``
    since: int
    counted: bool
    stamp: bytes  # of the history that it leads to
    update: UpdateSequence | SignCounts


@dataclass(frozen=True)
class Model:
    """The whole model, and whether the client's last upload counted."""

    head: Head  # where it leads to
    since: int  # -1 for a client that has no weights yet
    counted: bool
    weights: Vector
    votes: SignCounts | None


AnyCatchUp = Replay | Sum | Model


@dataclass(frozen=True)
class CatchUpBuilder:
    """From which round to which a catch-up leads, and whether an upload counted on the way."""

    since: int
    round: int
    counted: bool
    terms: Terms

    def replay(self, broadcasts: Sequence[bytes], stamp: bytes) -> bytes:
        """By the broadcasts themselves, which say what counted."""
        parts = b"".join(varint(len(data)) + data for data in broadcasts)
        return self._seal(REPLAY, parts, stamp)

    def replay_size(self, broadcasts: Sequence[bytes]) -> int:
        """How long a replay would be, to a few bytes."""
        return 24 + sum(len(data) + 2 for data in broadcasts)

    def sum(self, payload: bytes, stamp: bytes, new_stamp: bytes) -> bytes:
        """By their sum, as ``encode_sum`` wrote it."""
        return self._seal(SUM, new_stamp + payload, stamp)

    def model(self, parts: tuple[Vector, SignCounts | None], new_stamp: bytes) -> bytes:
        """By the whole model, given a replica's parts."""
        weights, votes = parts
        payload = DenseCodec().encode(Dense(weights), self.terms.layout)
        if votes is not None:
            payload += SignCountsCodec().encode(votes, self.terms.layout)
        return self._seal(MODEL, payload, new_stamp)

    def _seal(self, mode: int, payload: bytes, stamp: bytes) -> bytes:
        counted = self.counted and mode != REPLAY
        lag = varint((self.round - self.since) * 8 + 4 * counted + mode)
        return seal(CATCH_UP, self.terms.head(stamp, self.round) + lag + payload)


def encode_sum(update: UpdateSequence | SignCounts, layout: Layout) -> bytes:
    """The part of a sum that is the same for every client that missed the same rounds."""
    codec = SignCountsCodec() if isinstance(update, SignCounts) else UpdateSequenceCodec()
    return codec.encode(update, layout)


def open_for_client(data: bytes, terms: Terms) -> Broadcast | CohortNotice | AnyCatchUp:
    """Read any message that a server sends to a client."""
    head, reader = terms.open(data, BROADCAST, CATCH_UP, COHORT_NOTICE)
    if head.kind == COHORT_NOTICE:
        return CohortNotice.read(head, reader)
    if head.kind == BROADCAST:
        return Broadcast.read(head, reader, data, terms)
    lag, counted, mode = read_lag(reader)
    since = head.round - lag
    if since < (-1 if mode == MODEL else 0) or (counted and (mode == REPLAY or since < 0)):
        raise DecodeError(
            f"a catch-up by {MODES[mode].value} cannot lead from round {since} to {head.round}"
        )
    if mode == REPLAY:
        return Replay(head, since, _read_replay(reader, head, since, terms))
    if mode == MODEL:
        dense = DenseCodec().decode(reader.take(1 + 4 * terms.layout.size), terms.layout)
        votes = SignCountsCodec().decode(reader.rest(), terms.layout) if reader.left else None
        return Model(head, since, counted, dense.values, votes)
    stamp, payload = reader.take(STAMP), reader.rest()
    update: UpdateSequence | SignCounts = (
        SignCountsCodec().decode(payload, terms.layout)
        if payload[:1] == bytes([SignCountsCodec.id])
        else UpdateSequenceCodec().decode(payload, terms.layout)
    )
    return Sum(head, since, counted, stamp, update)


def read_lag(reader: Reader) -> tuple[int, bool, int]:
    """How many rounds a catch-up covers, whether an upload counted, and its mode."""
    lag, flags = divmod(reader.varint(), 8)
    if flags & 3 not in MODES:
        raise DecodeError(f"unknown catch-up mode {flags & 3}")
    return lag, bool(flags & 4), flags & 3


def _read_replay(reader: Reader, head: Head, since: int, terms: Terms) -> tuple[bytes, ...]:
    if reader.left > 8 * terms.layout.size + 4096:
        raise DecodeError(f"a replay of {reader.left} bytes is longer than the model would be")
    broadcasts, stamp = [], head.stamp
    for expected in range(since, head.round):
        broadcast = Broadcast.open(reader.take(reader.varint()), terms)
        if broadcast.round != expected or broadcast.head.stamp != stamp:
            raise DecodeError(f"replay has round {broadcast.round} in place of {expected}")
        broadcasts.append(broadcast.data)
        stamp = broadcast.next_stamp
    reader.end()
    return tuple(broadcasts)
