"""What a store writes down when a server has changed, and ``Server.replay`` reads."""

from __future__ import annotations

from fedtern.core.protocol.messages import Broadcast
from fedtern.core.wire import varint

UPLOAD, DISCARD, BROADCAST = b"U", b"D", b"B"


def upload_record(client_id: int, data: bytes, num_examples: int) -> bytes:
    """An upload has been accepted."""
    return UPLOAD + varint(client_id) + varint(num_examples) + data


def discard_record(client_id: int) -> bytes:
    """An accepted upload has been dropped."""
    return DISCARD + varint(client_id)


def broadcast_record(broadcast: Broadcast) -> bytes:
    """A round has been finished."""
    return BROADCAST + broadcast.data
