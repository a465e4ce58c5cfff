"""Catch-ups: messages for clients that missed rounds or have no weights yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedtern.core.carried import NO_VALUES, Values, encode_carried, read_carried
from fedtern.core.codecs import (
    DenseCodec,
    SignCountsCodec,
    SparseCodec,
    StepsCodec,
    UpdateSequenceCodec,
)
from fedtern.core.envelope import ADDRESSED_CATCH_UP, BROADCAST, CATCH_UP, COHORT_NOTICE, seal
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout, Vector
from fedtern.core.protocol.events import How
from fedtern.core.protocol.initial import read_initial
from fedtern.core.protocol.messages import Broadcast, CohortNotice, stamp_after
from fedtern.core.protocol.terms import STAMP_BYTES, Header, Terms
from fedtern.core.updates import Sparse, Steps
from fedtern.core.updates.sums import MergedUpdate, SignCounts
from fedtern.core.wire import Reader, floats_view, varint

# Modes of a catch-up on the wire.
REPLAY = 0
SUM = 1
MODEL = 2
START = 3
REPLAY_MARKER = 0  # after an initial model, in the place of the codec of a sum
MODES = {REPLAY: How.REPLAY, SUM: How.SUM, MODEL: How.MODEL, START: How.START}


@dataclass(frozen=True)
class Addressee:
    """The client that a catch-up is for, and what the server knows about it.

    Attributes:
        client_id: the client.
        stamp: the stamp of the history at the client's round; empty for a client without weights.
        uploaded_later: whether an upload of the client to a later round than its own was counted. A
            client that still has a residual was then restored from an old copy.

    """

    client_id: int
    stamp: bytes = b""
    uploaded_later: bool = False


@dataclass(frozen=True)
class Replay:
    """The broadcasts that a client missed.

    Attributes:
        header: the target round, with the stamp of the history at round ``since``.
        since: the round that the replay starts from.
        broadcasts: the broadcasts as bytes.
        addressee: the client that the message is for; None if it names none (version 1).

    """

    header: Header
    since: int
    broadcasts: tuple[bytes, ...]
    addressee: Addressee | None = None

    @property
    def last_stamp(self) -> bytes:
        """The stamp of the history at the target round."""
        return stamp_after(self.broadcasts[-1]) if self.broadcasts else self.header.stamp

    def decoded(self, terms: Terms) -> Iterator[Broadcast]:
        """Decode the broadcasts one by one, because all together could take much memory."""
        for data in self.broadcasts:
            yield Broadcast.open(data, terms)


@dataclass(frozen=True)
class Sum:
    """The sum of the broadcasts that a client missed.

    Attributes:
        header: the target round, with the stamp of the history at round ``since``.
        since: the round that the sum starts from.
        counted: whether the client's last upload was counted.
        stamp: the stamp of the history at the target round.
        update: the sum of the updates.
        carried: the newest values of the carried tensors that these rounds have changed.
        addressee: the client that the message is for; None if it names none (version 1).

    """

    header: Header
    since: int
    counted: bool
    stamp: bytes
    update: MergedUpdate
    carried: Values
    addressee: Addressee | None = None

    @property
    def last_stamp(self) -> bytes:
        """The stamp of the history at the target round."""
        return self.stamp


@dataclass(frozen=True)
class Model:
    """The whole model.

    Attributes:
        header: the target round, with its stamp.
        since: the client's round; -1 for a client without weights.
        counted: whether the client's last upload was counted.
        weights: the weights.
        sign_counts: signs to apply to the weights, or None.
        low: the parts of exact weights that float32 cannot hold, or None.
        carried: the values of all carried tensors.
        addressee: the client that the message is for; None if it names none (version 1).

    """

    header: Header
    since: int
    counted: bool
    weights: Vector
    sign_counts: SignCounts | None
    low: Sparse | None
    carried: Values
    addressee: Addressee | None = None

    @property
    def last_stamp(self) -> bytes:
        """The stamp of the history at the target round."""
        return self.header.stamp


@dataclass(frozen=True)
class Start:
    """The initial model, which the server has rounded, and all broadcasts since or their sum.

    Attributes:
        header: the target round, with its stamp.
        weights: the initial weights.
        update: the sum of all updates; None at round 0 or if there are broadcasts.
        broadcasts: all broadcasts as bytes, if their updates cannot be summed.
        carried: the values of all carried tensors at the target round.
        addressee: the client that the message is for; None if it names none (version 1).

    """

    header: Header
    weights: Vector
    update: MergedUpdate | None
    broadcasts: tuple[bytes, ...]
    carried: Values
    addressee: Addressee | None = None
    since: int = -1
    counted: bool = False

    @property
    def last_stamp(self) -> bytes:
        """The stamp of the history at the target round."""
        return self.header.stamp

    def decoded(self, terms: Terms) -> Iterator[Broadcast]:
        """Decode the broadcasts one at a time, because all of them together may be large."""
        return (Broadcast.open(data, terms) for data in self.broadcasts)


AnyCatchUp = Replay | Sum | Model | Start


@dataclass(frozen=True)
class CatchUpBuilder:
    """Builds the catch-ups of one client.

    Attributes:
        since: the client's round; -1 for a client without weights.
        round: the target round.
        counted: whether the client's upload to round ``since`` was counted.
        terms: model and method.
        addressee: the client. None for a message of version 1, which names no client: for any
            client without weights.

    """

    since: int
    round: int
    counted: bool
    terms: Terms
    addressee: Addressee | None = None

    def replay(self, broadcasts: Sequence[bytes], stamp: bytes) -> bytes:
        """Build a catch-up from broadcasts; ``stamp`` is of the history before the first one."""
        return self._seal(REPLAY, stamp, *_with_lengths(broadcasts))

    def replay_size(self, broadcasts: Sequence[bytes]) -> int:
        """Estimate the size of a replay to within a few bytes."""
        return 24 + sum(len(data) + 2 for data in broadcasts)

    def sum(self, payload: bytes, stamp: bytes, new_stamp: bytes) -> bytes:
        """Build a catch-up from a sum.

        Args:
            payload: the carried tensors and the sum, encoded by ``encode_sum``.
            stamp: the stamp of the history at round ``since``.
            new_stamp: the stamp of the history at the target round.

        """
        return self._seal(SUM, stamp, new_stamp, payload)

    def model(
        self,
        weights: Vector,
        sign_counts: SignCounts | None,
        new_stamp: bytes,
        carried: Values = NO_VALUES,
        low: Sparse | None = None,
    ) -> bytes:
        """Build a catch-up from the weights of a replica, and signs or low parts to add to them."""
        section = encode_carried(carried, self.terms.layout)
        # The parts of ``DenseCodec().encode``, without a copy of the weights.
        parts: list[bytes | memoryview] = [section, bytes([DenseCodec.id]), floats_view(weights)]
        if sign_counts is not None:
            parts.append(SignCountsCodec().encode(sign_counts, self.terms.layout))
        elif low is not None:
            parts.append(SparseCodec().encode(low, self.terms.layout))
        return self._seal(MODEL, new_stamp, *parts)

    def start(self, initial: bytes, sum_payload: bytes, new_stamp: bytes, carried: Values) -> bytes:
        """Build a catch-up from the encoded initial model and the sum of all broadcasts since."""
        section = encode_carried(carried, self.terms.layout)
        return self._seal(START, new_stamp, section, initial, sum_payload)

    def start_with_replay(
        self, initial: bytes, broadcasts: Sequence[bytes], new_stamp: bytes, carried: Values
    ) -> bytes:
        """Build a catch-up from the encoded initial model and all broadcasts since."""
        section = encode_carried(carried, self.terms.layout)
        marker = bytes([REPLAY_MARKER])
        return self._seal(START, new_stamp, section, initial, marker, *_with_lengths(broadcasts))

    def _seal(self, mode: int, stamp: bytes, *payload: bytes | memoryview) -> bytes:
        # A replay does not need the flag: its broadcasts list the uploads that were counted.
        counted = self.counted and mode != REPLAY
        lag = self.round - self.since
        header = self.terms.header(stamp, self.round)
        client = self.addressee
        if client is None:
            return seal(CATCH_UP, header, varint(8 * lag + 4 * counted + mode), *payload)
        flags = varint(16 * lag + 8 * client.uploaded_later + 4 * counted + mode)
        # The header of a model has the stamp of its own round.
        since = client.stamp if mode == MODEL else b""
        head = (header, varint(client.client_id), flags, since)
        return seal(ADDRESSED_CATCH_UP, *head, *payload)


def encode_sum(update: MergedUpdate, layout: Layout) -> bytes:
    """Encode the part of a sum that is the same for all clients that missed the same rounds."""
    if isinstance(update, SignCounts):
        return SignCountsCodec().encode(update, layout)
    if isinstance(update, Steps):
        return StepsCodec.of(update).encode(update, layout)
    return UpdateSequenceCodec().encode(update, layout)


def read_server_message(data: bytes, terms: Terms) -> Broadcast | CohortNotice | AnyCatchUp:
    """Read any message that a server sends to a client.

    Raises:
        DecodeError: the bytes are not such a message.
        RemoteProtocolError: the server has another layout or method.

    """
    header, reader = terms.open(data, BROADCAST, CATCH_UP, COHORT_NOTICE, ADDRESSED_CATCH_UP)
    if header.kind == COHORT_NOTICE:
        return CohortNotice.read(header, reader)
    if header.kind == BROADCAST:
        return Broadcast.read(header, reader, data, terms)
    client_id = reader.varint() if header.kind == ADDRESSED_CATCH_UP else None
    lag, uploaded_later, counted, mode = read_lag(reader, is_addressed=client_id is not None)
    since = header.round - lag
    addressee = None
    if client_id is not None:
        addressee = Addressee(
            client_id, header.stamp if mode in (REPLAY, SUM) else b"", uploaded_later
        )
    first = -1 if mode in (MODEL, START) else 0
    is_late_start = mode == START and since >= 0
    flags_are_valid = not (counted and mode == REPLAY) and not (
        since < 0 and (counted or uploaded_later)
    )
    if since < first or is_late_start or not flags_are_valid or (counted and uploaded_later):
        raise DecodeError(
            f"a catch-up by {MODES[mode].value} cannot lead from round {since} to {header.round}"
        )
    if mode == REPLAY:
        return Replay(header, since, _read_replay(reader, header, since, terms), addressee)
    if mode == SUM:
        stamp = reader.take(STAMP_BYTES)
        carried = read_carried(reader, terms.layout)
        update = _decode_sum(reader.rest(), terms.layout)
        return Sum(header, since, counted, stamp, update, carried, addressee)
    if mode == MODEL and since >= 0 and addressee is not None:
        addressee = replace(addressee, stamp=reader.take(STAMP_BYTES))
    carried = read_carried(reader, terms.layout)
    if len(carried) < len(terms.layout.carried):
        raise DecodeError("a whole model must have the values of all carried tensors")
    if mode == MODEL:
        dense = DenseCodec().read(reader, terms.layout)
        sign_counts, low = _read_model_parts(reader.rest(), terms.layout)
        weights = dense.values
        return Model(header, since, counted, weights, sign_counts, low, carried, addressee)
    return _read_start(reader, header, carried, terms, addressee)


def _read_start(
    reader: Reader, header: Header, carried: Values, terms: Terms, addressee: Addressee | None
) -> Start:
    """Read an initial model, and all broadcasts since or their sum."""
    weights = read_initial(reader, terms.layout)
    if bool(header.round) != bool(reader.remaining):
        raise DecodeError(
            f"an initial model with {reader.remaining} bytes after it cannot lead to round"
            f" {header.round}"
        )
    if not header.round:
        return Start(header, weights, None, (), carried, addressee)
    rest = reader.rest()
    if rest[0] != REPLAY_MARKER:
        return Start(header, weights, _decode_sum(rest, terms.layout), (), carried, addressee)
    replay = _read_broadcasts(Reader(rest[1:]), 0, header.round, terms)
    if replay.last_stamp != header.stamp:
        raise DecodeError("the broadcasts after an initial model lead to another history")
    return Start(header, weights, None, replay.broadcasts, carried, addressee)


def read_lag(reader: Reader, *, is_addressed: bool) -> tuple[int, bool, bool, int]:
    """Read the number of rounds of a catch-up, its flags and its mode.

    Args:
        reader: reads the message.
        is_addressed: whether the message is of version 2.

    Returns:
        The number of rounds; whether an upload to a later round was counted; whether the upload to
        the first round was counted; the mode.

    """
    value = reader.varint()
    uploaded_later = False
    if is_addressed:
        uploaded_later = bool(value & 8)
        value = value >> 4 << 3 | value & 7
    lag, flags = divmod(value, 8)
    if flags & 3 not in MODES:
        raise DecodeError(f"unknown catch-up mode {flags & 3}")
    return lag, uploaded_later, bool(flags & 4), flags & 3


def _read_model_parts(payload: bytes, layout: Layout) -> tuple[SignCounts | None, Sparse | None]:
    """Read the sign counts or the low parts after the weights of a model, if there are any."""
    if not payload:
        return None, None
    if payload[:1] != bytes([SparseCodec.id]):
        return SignCountsCodec().decode(payload, layout), None
    low = SparseCodec().decode(payload, layout)
    if not low.indices.size or not low.values.all():
        raise DecodeError("a low part of a weight is zero")
    return None, low


def _decode_sum(payload: bytes, layout: Layout) -> MergedUpdate:
    if payload[:1] == bytes([SignCountsCodec.id]):
        return SignCountsCodec().decode(payload, layout)
    for scope in ("model", "tensor"):
        codec = StepsCodec(scope)
        if payload[:1] == bytes([codec.id]):
            return codec.decode(payload, layout)
    return UpdateSequenceCodec().decode(payload, layout)


def _read_replay(reader: Reader, header: Header, since: int, terms: Terms) -> tuple[bytes, ...]:
    """Check every broadcast of a replay and return them as bytes."""
    replay = _read_broadcasts(reader, since, header.round, terms)
    if replay.broadcasts and replay.first_stamp != header.stamp:
        raise DecodeError(f"round {since} of a replay belongs to another history")
    return replay.broadcasts


class _Broadcasts(NamedTuple):
    """Checked broadcasts of successive rounds.

    Attributes:
        broadcasts: the broadcasts as bytes.
        first_stamp: the stamp of the history before the first one.
        last_stamp: the stamp of the history after the last one.

    """

    broadcasts: tuple[bytes, ...]
    first_stamp: bytes
    last_stamp: bytes


def _with_lengths(broadcasts: Sequence[bytes]) -> list[bytes]:
    return [part for data in broadcasts for part in (varint(len(data)), data)]


def _read_broadcasts(reader: Reader, first: int, end: int, terms: Terms) -> _Broadcasts:
    """Read the broadcasts of rounds, and check that each one follows from the one before."""
    layout = terms.layout
    if reader.remaining > 8 * layout.size + 2 * layout.carried_nbytes + 4096:
        raise DecodeError(f"a replay of {reader.remaining} bytes is longer than the model would be")
    broadcasts: list[bytes] = []
    first_stamp = stamp = b""
    for expected in range(first, end):
        broadcast = Broadcast.open(reader.take(reader.varint()), terms)
        if broadcast.round != expected:
            raise DecodeError(f"expected round {expected} in a replay, got {broadcast.round}")
        if not broadcasts:
            first_stamp = broadcast.header.stamp
        elif broadcast.header.stamp != stamp:
            raise DecodeError(f"round {expected} of a replay belongs to another history")
        broadcasts.append(broadcast.data)
        stamp = broadcast.next_stamp
    reader.end()
    return _Broadcasts(tuple(broadcasts), first_stamp, stamp)
