"""Messages between the server app and the client apps: a byte string in each Flower message.

Every message starts with a magic byte, the version of this protocol and its kind. Those that start
or end the work of two sides (``Handshake`` and an ``Answer`` of kind ``REFUSED``) continue with the
version of the package. This much never changes, so that two versions that do not understand each
other can say so.

The server sends a ``Handshake`` to a node that it does not know, and a ``RoundRequest`` to one that
it does. The node replies with an ``Answer``. Its reply to a request to evaluate has only the
records of its app, unless one of them is the model. ``docs/format.md`` describes the bytes.

The byte string is a value of a ``ConfigRecord``. Long data, such as a whole model, is an attachment
instead: an ``Array``, which Flower divides into chunks and stores once for all nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict

from fedtern.core.errors import DecodeError, RemoteProtocolError
from fedtern.core.wire import Reader, varint

KEY = "fedtern"  # key of the record, and of the byte string in it
ATTACHMENT = "fedtern.data"  # key of the record with data that is too long for a ConfigRecord
PROTOCOL = 2
_MAGIC = 0xFD
_STAMP_BYTES = 3
_MAX_NAME_BYTES = 200
_IN_CONTEXT = 1  # flags of a RoundRequest
_DISCARD_STATE = 2
_RENUMBERED = 4
_ATTACHED = 8
# Shorter data is sent faster as a value: every object of a message is an HTTP request.
_LONG_BYTES = 1 << 20
_STYPE = "fedtern"  # how Flower names the encoding of an array


class RequestKind(IntEnum):
    """Kinds of messages that a server sends; the numbers are part of the format."""

    HANDSHAKE = 1
    ROUND = 2


class AnswerKind(IntEnum):
    """Kinds of messages that a node sends; the numbers are part of the format."""

    STATUS = 16
    """Reply to a handshake: client number, round, stamp, and the mark of the node's state."""

    UPLOAD = 17
    """An upload for the round."""

    NOT_READY = 18
    """The client cannot train in this round: its state is locked, lost, or of another history."""

    FAILED = 19
    """The app's result cannot be sent."""

    REFUSED = 20
    """The node cannot work with this server at all."""

    EVALUATED = 21
    """The app's reply to an evaluation has the unchanged model, which is not sent."""


class ProtocolMismatch(RemoteProtocolError):
    """The peer speaks another version of this protocol."""


@dataclass(frozen=True)
class Handshake:
    """Tells a node which federation it can join, and asks for the state of its client.

    Attributes:
        version: Version of the server's package.
        spec: The federation, as ``FederationSpec.to_json`` returns it.

    """

    version: str
    spec: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Encode the message."""
        version = _encode_text(self.version)
        return _head(RequestKind.HANDSHAKE) + version + json.dumps(self.spec).encode()


@dataclass(frozen=True)
class RoundRequest:
    """Asks a client to train or evaluate, from the newest weights.

    Whether to train or to evaluate is the type of the Flower message.

    Attributes:
        federation: Name of the federation.
        in_context: Whether states are in the node's context, as in a simulation.
        discard_state: Whether the client has to discard its state.
        client: Number of the client.
        data: A broadcast or catch-up; empty for a client that is up to date.
        renumbered: Whether ``client`` replaces the number that the node has reported.
        arrays_key: Key of the record in which the app expects the model.
        attached: Whether the data is in the attachment of the Flower message.

    """

    federation: str
    in_context: bool
    discard_state: bool
    client: int
    data: bytes
    renumbered: bool = False
    arrays_key: str = ""
    attached: bool = False

    def to_bytes(self) -> bytes:
        """Encode the message."""
        flags = (
            _IN_CONTEXT * self.in_context
            + _DISCARD_STATE * self.discard_state
            + _RENUMBERED * self.renumbered
            + _ATTACHED * self.attached
        )
        names = _encode_text(self.federation) + _encode_text(self.arrays_key)
        return _head(RequestKind.ROUND) + bytes([flags]) + names + varint(self.client) + self.data


@dataclass(frozen=True)
class Answer:
    """The position of a node's client, and the result of a request.

    Attributes:
        kind: What the node answers.
        client: Number of the client; None if it has none yet.
        round: Round of its replica; -1 if it has no weights.
        stamp: Stamp of the history that it has followed.
        data: The upload, or the mark of the state in a ``STATUS``. The data of an upload may be in
            the attachment of the Flower message instead.
        attached: Whether the data is in the attachment.
        arrays_key: Key of the record that the upload replaces in the app's reply.
        reason: Why there is no upload, for ``NOT_READY``, ``FAILED`` and ``REFUSED``.
        version: Version of the node's package, for ``REFUSED``.

    """

    kind: AnswerKind
    client: int | None = None
    round: int = -1
    stamp: bytes = bytes(_STAMP_BYTES)
    data: bytes = b""
    reason: str = ""
    version: str = ""
    arrays_key: str = ""
    attached: bool = False

    def to_bytes(self) -> bytes:
        """Encode the message."""
        if self.kind is AnswerKind.REFUSED:
            return _head(self.kind) + _encode_text(self.version) + self.reason.encode()
        client = varint(0 if self.client is None else self.client + 1)
        rest = self.data or self.reason.encode()
        if self.kind in (AnswerKind.UPLOAD, AnswerKind.EVALUATED):
            rest = bytes([_ATTACHED * self.attached]) + _encode_text(self.arrays_key) + self.data
        return _head(self.kind) + client + varint(self.round + 1) + self.stamp + rest


def read_request(data: bytes) -> Handshake | RoundRequest:
    """Decode a message of a server.

    Raises:
        DecodeError: The bytes are not such a message.
        ProtocolMismatch: The server speaks another version of the protocol.

    """
    number, reader = _open(data)
    try:
        kind = RequestKind(number)
    except ValueError:
        raise DecodeError(f"a server does not send messages of kind {number}") from None
    if kind is RequestKind.HANDSHAKE:
        version = _read_text(reader)
        try:
            spec = json.loads(reader.rest())
        except ValueError as error:
            raise DecodeError(f"the spec in a handshake is not JSON: {error}") from error
        if not isinstance(spec, dict):
            raise DecodeError("the spec in a handshake must be a JSON object")
        return Handshake(version, spec)
    flags = reader.byte()
    federation = _read_text(reader)
    arrays_key = _read_text(reader)
    client = reader.varint()
    return RoundRequest(
        federation,
        in_context=bool(flags & _IN_CONTEXT),
        discard_state=bool(flags & _DISCARD_STATE),
        client=client,
        data=reader.rest(),
        renumbered=bool(flags & _RENUMBERED),
        arrays_key=arrays_key,
        attached=bool(flags & _ATTACHED),
    )


def read_answer(data: bytes) -> Answer:
    """Decode a message of a node.

    Raises:
        DecodeError: The bytes are not such a message.
        ProtocolMismatch: The node speaks another version of the protocol.

    """
    number, reader = _open(data)
    try:
        kind = AnswerKind(number)
    except ValueError:
        raise DecodeError(f"a node does not send messages of kind {number}") from None
    if kind is AnswerKind.REFUSED:
        version = _read_text(reader)
        return Answer(kind, version=version, reason=_decode_text(reader.rest()))
    client = reader.varint() - 1
    round = reader.varint() - 1
    stamp = reader.take(_STAMP_BYTES)
    answer = Answer(kind, None if client < 0 else client, round, stamp)
    if kind in (AnswerKind.UPLOAD, AnswerKind.EVALUATED):
        attached = bool(reader.byte() & _ATTACHED)
        arrays_key = _read_text(reader)
        return replace(answer, data=reader.rest(), arrays_key=arrays_key, attached=attached)
    if kind is AnswerKind.STATUS:
        return replace(answer, data=reader.rest())
    return replace(answer, reason=_decode_text(reader.rest()))


def is_long(data: bytes) -> bool:
    """Return whether data belongs into an attachment."""
    return len(data) > _LONG_BYTES


def make_attachment(data: bytes) -> ArrayRecord:
    """Return a record that holds data."""
    return ArrayRecord({"data": Array("uint8", (len(data),), _STYPE, data)})


def take_attachment(content: RecordDict) -> bytes:
    """Remove the attachment from the content of a message, and return its data.

    Raises:
        DecodeError: The content has no attachment.

    """
    record = content.array_records.get(ATTACHMENT)
    array = None if record is None else record.get("data")
    if array is None or array.stype != _STYPE:
        raise DecodeError("the attachment of a message is missing")
    del content[ATTACHMENT]
    return array.data


def _head(kind: RequestKind | AnswerKind) -> bytes:
    return bytes([_MAGIC, PROTOCOL, kind])


def _open(data: bytes) -> tuple[int, Reader]:
    """Check magic byte and protocol; return the kind, and a reader of the remaining bytes."""
    reader = Reader(data)
    if reader.byte() != _MAGIC:
        raise DecodeError("not a message of fedtern.transports.flower")
    protocol = reader.byte()
    kind = reader.byte()
    if protocol != PROTOCOL:
        has_version = kind in (RequestKind.HANDSHAKE, AnswerKind.REFUSED)
        version = _read_text(reader) if has_version else "of another version"
        raise ProtocolMismatch(
            f"the peer is fedtern {version} and speaks protocol {protocol} of"
            f" fedtern.transports.flower, this side speaks {PROTOCOL}: install the same version of"
            " fedtern on both sides"
        )
    return kind, reader


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return varint(len(data)) + data


def _read_text(reader: Reader) -> str:
    if (length := reader.varint()) > _MAX_NAME_BYTES:
        raise DecodeError(f"a name has {length} bytes, the limit is {_MAX_NAME_BYTES}")
    return _decode_text(reader.take(length))


def _decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"not UTF-8: {error}") from error
