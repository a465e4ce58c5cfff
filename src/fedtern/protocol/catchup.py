"""What brings a client up to date that missed some rounds, or all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedtern.codecs import DenseCodec, SeriesCodec, TallyCodec
from fedtern.envelope import BROADCAST, CATCH_UP, seal
from fedtern.errors import DecodeError
from fedtern.layout import Layout, Vector
from fedtern.protocol.messages import Broadcast
from fedtern.protocol.terms import Terms
from fedtern.sums import Series, Tally
from fedtern.updates import Dense
from fedtern.wire import Reader, u32, varint

_REPLAY, _SUM, _MODEL, _COUNTED = 0, 1, 2, 0x80


@dataclass(frozen=True)
class Replay:
    """The broadcasts that a client missed, one by one."""

    since: int
    round: int
    broadcasts: tuple[Broadcast, ...]


@dataclass(frozen=True)
class Sum:
    """What a client missed, added up, and whether its last upload counted."""

    since: int
    round: int
    counted: bool
    update: Series | Tally


@dataclass(frozen=True)
class Model:
    """The whole model, and whether the client's last upload counted."""

    since: int  # -1 for a client that has no weights yet
    round: int
    counted: bool
    weights: Vector
    votes: Tally | None


CatchUp = Replay | Sum | Model


def seal_replay(broadcasts: Sequence[bytes], since: int, round: int, terms: Terms) -> bytes:
    """A catch-up of broadcasts."""
    parts = [varint(len(data)) + data for data in broadcasts]
    return _seal_catch_up(_REPLAY, b"".join(parts), since, round, terms)


def seal_sum(payload: bytes, counted: bool, since: int, round: int, terms: Terms) -> bytes:
    """A catch-up of their sum, as ``encode_sum`` wrote it."""
    return _seal_catch_up(_SUM | (_COUNTED if counted else 0), payload, since, round, terms)


def encode_sum(update: Series | Tally, layout: Layout) -> bytes:
    """The part of a sum that is the same for every client that missed the same rounds."""
    codec = TallyCodec() if isinstance(update, Tally) else SeriesCodec()
    return codec.encode(update, layout)


def seal_model(
    parts: tuple[Vector, Tally | None], counted: bool, since: int, round: int, terms: Terms
) -> bytes:
    """A catch-up of the whole model, given a replica's parts."""
    weights, votes = parts
    payload = DenseCodec().encode(Dense(weights), terms.layout)
    if votes is not None:
        payload += TallyCodec().encode(votes, terms.layout)
    return _seal_catch_up(_MODEL | (_COUNTED if counted else 0), payload, since, round, terms)


def _seal_catch_up(mode: int, payload: bytes, since: int, round: int, terms: Terms) -> bytes:
    # "Since" is shifted by one: 0 is a client that has no weights yet.
    return seal(CATCH_UP, terms.digest + u32(round) + u32(since + 1) + bytes([mode]) + payload)


def open_for_client(data: bytes, terms: Terms) -> Broadcast | CatchUp:
    """Whatever a server may have sent to a client."""
    kind, reader = terms.open(data, BROADCAST, CATCH_UP)
    if kind == BROADCAST:
        return Broadcast.read(reader, data, terms)
    round, since, flags = reader.u32(), reader.u32() - 1, reader.byte()
    mode, counted = flags & ~_COUNTED, bool(flags & _COUNTED)
    if mode == _MODEL:
        dense = DenseCodec().decode(reader.take(1 + 4 * terms.layout.size), terms.layout)
        votes = TallyCodec().decode(reader.rest(), terms.layout) if reader.left else None
        return Model(since, round, counted, dense.values, votes)
    if since > round or since < 0:
        raise DecodeError(f"a catch-up cannot lead from round {since} to {round}")
    if mode == _SUM:
        payload = reader.rest()
        update: Series | Tally = (
            TallyCodec().decode(payload, terms.layout)
            if payload[:1] == bytes([TallyCodec.id])
            else SeriesCodec().decode(payload, terms.layout)
        )
        return Sum(since, round, counted, update)
    if flags != _REPLAY:
        raise DecodeError(f"unknown catch-up mode {flags:#04x}")
    return Replay(since, round, _read_replay(reader, since, round, terms))


def _read_replay(reader: Reader, since: int, round: int, terms: Terms) -> tuple[Broadcast, ...]:
    broadcasts = []
    for expected in range(since, round):
        broadcast = Broadcast.open(reader.take(reader.varint()), terms)
        if broadcast.round != expected:
            raise DecodeError(f"replay has round {broadcast.round} in place of {expected}")
        broadcasts.append(broadcast)
    reader.end()
    return tuple(broadcasts)
