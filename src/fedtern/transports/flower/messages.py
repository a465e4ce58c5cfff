"""What the two apps say to each other: one byte string in each message.

Every frame begins with a magic byte and the number of this protocol; those that introduce one side
to the other, or send it away, go on with the version of the package. So much stays the same for
ever: it is how two versions that do not understand each other say so.

The server says ``Hello`` to a node it does not know, and ``Turn`` to one that it does. The node
answers with an ``Answer``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedtern.core.errors import DecodeError, RemoteProtocolError
from fedtern.core.wire import Reader, varint

KEY = "fedtern"  # of the record, and of the byte string in it
PROTOCOL = 1
_MAGIC = 0xFD
_HELLO, _TURN = 1, 2
HERE, UPLOAD, LOST, FAILED, REFUSED = 16, 17, 18, 19, 20
_ANSWERS = {HERE, UPLOAD, LOST, FAILED, REFUSED}
_STAMP = 3
_LONGEST_NAME = 200


class OtherProtocol(RemoteProtocolError):
    """The peer speaks another version of this protocol."""


@dataclass(frozen=True)
class Hello:
    """What a node has to know of a federation before it can take part."""

    version: str  # of the server's package
    terms: Mapping[str, Any]  # see ``fedtern.transports.flower.federation_spec``

    def to_bytes(self) -> bytes:
        """The frame."""
        return _head(_HELLO) + _text(self.version) + json.dumps(self.terms).encode()


@dataclass(frozen=True)
class Turn:
    """A node's turn to train or to evaluate, from the newest weights."""

    federation: str
    in_context: bool  # whether this is a simulation, where states live in the context
    fresh: bool  # whether the client has to forget whatever it knew
    client: int
    data: bytes  # a broadcast or catch-up; empty for a client that is up to date
    renamed: bool = False  # whether the client is to be another one than it has said it is

    def to_bytes(self) -> bytes:
        """The frame."""
        flags = bytes([self.in_context + 2 * self.fresh + 4 * self.renamed])
        return _head(_TURN) + flags + _text(self.federation) + varint(self.client) + self.data


@dataclass(frozen=True)
class Answer:
    """Where a client is, and what came of its turn.

    ``HERE`` answers a hello, with the mark of its state; ``UPLOAD`` brings an upload; ``LOST`` says
    that what the server sent does not fit what the client has; ``FAILED`` that training gave
    nothing to send; ``REFUSED`` that the two cannot work together. The last three give a reason.
    """

    kind: int
    client: int | None = None
    round: int = -1
    stamp: bytes = bytes(_STAMP)
    data: bytes = b""
    reason: str = ""
    version: str = ""

    def to_bytes(self) -> bytes:
        """The frame."""
        if self.kind == REFUSED:
            return _head(REFUSED) + _text(self.version) + self.reason.encode()
        client = varint(0 if self.client is None else self.client + 1)
        rest = self.data or self.reason.encode()
        return _head(self.kind) + client + varint(self.round + 1) + self.stamp + rest


def read_request(data: bytes) -> Hello | Turn:
    """What a server said."""
    kind, reader = _open(data)
    if kind == _HELLO:
        version = _read_text(reader)
        try:
            terms = json.loads(reader.rest())
        except ValueError as error:
            raise DecodeError(f"a hello that is not JSON: {error}") from error
        if not isinstance(terms, dict):
            raise DecodeError("a hello holds a JSON object")
        return Hello(version, terms)
    if kind != _TURN:
        raise DecodeError(f"a server does not send frames of kind {kind}")
    flags = reader.byte()
    federation, client = _read_text(reader), reader.varint()
    in_context, fresh, renamed = (bool(flags & bit) for bit in (1, 2, 4))
    return Turn(federation, in_context, fresh, client, reader.rest(), renamed)


def read_answer(data: bytes) -> Answer:
    """What a node said."""
    kind, reader = _open(data)
    if kind not in _ANSWERS:
        raise DecodeError(f"a node does not send frames of kind {kind}")
    if kind == REFUSED:
        version = _read_text(reader)
        return Answer(kind, version=version, reason=_decoded(reader.rest()))
    client, round, stamp = reader.varint() - 1, reader.varint() - 1, reader.take(_STAMP)
    rest = reader.rest()
    data, reason = (rest, "") if kind in (HERE, UPLOAD) else (b"", _decoded(rest))
    return Answer(kind, None if client < 0 else client, round, stamp, data, reason)


def _head(kind: int) -> bytes:
    return bytes([_MAGIC, PROTOCOL, kind])


def _open(data: bytes) -> tuple[int, Reader]:
    reader = Reader(data)
    if reader.byte() != _MAGIC:
        raise DecodeError("not a frame of fedtern.transports.flower")
    protocol, kind = reader.byte(), reader.byte()
    if protocol != PROTOCOL:
        known = kind in (_HELLO, REFUSED)
        version = _read_text(reader) if known else "of another version"
        raise OtherProtocol(
            f"the peer is fedtern {version} and speaks protocol {protocol} of fedtern's Flower"
            f" plug-in, this side speaks {PROTOCOL}: install the same version of fedtern on both"
            " sides"
        )
    return kind, reader


def _text(text: str) -> bytes:
    data = text.encode()
    return varint(len(data)) + data


def _read_text(reader: Reader) -> str:
    if (length := reader.varint()) > _LONGEST_NAME:
        raise DecodeError(f"a name of {length} bytes is too long")
    return _decoded(reader.take(length))


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"not UTF-8: {error}") from error
