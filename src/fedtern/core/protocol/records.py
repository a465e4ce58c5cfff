"""Records of a server's changes: a store writes them, ``Server.replay`` reads them."""

from __future__ import annotations

from fedtern.core.protocol.events import Accepted
from fedtern.core.protocol.messages import Broadcast
from fedtern.core.wire import varint

UPLOAD, DISCARD, BROADCAST = b"U", b"D", b"B"


def upload_record(upload: Accepted) -> bytes:
    """Record an accepted upload."""
    return UPLOAD + varint(upload.client_id) + varint(upload.num_examples) + upload.data


def discard_record(client_id: int) -> bytes:
    """Record that an accepted upload was dropped."""
    return DISCARD + varint(client_id)


def broadcast_record(broadcast: Broadcast) -> bytes:
    """Record the end of a round."""
    return BROADCAST + broadcast.data
