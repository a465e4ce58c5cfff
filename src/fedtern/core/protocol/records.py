"""Records of a server's changes. A store writes them, and ``Server.replay`` reads them."""

from __future__ import annotations

from fedtern.core.protocol.events import Accepted
from fedtern.core.protocol.messages import Broadcast
from fedtern.core.wire import varint

# The first byte of a record.
UPLOAD = b"U"
DISCARD = b"D"
BROADCAST = b"B"


def upload_record(upload: Accepted) -> bytes:
    """Return the record of an accepted upload."""
    return UPLOAD + varint(upload.client_id) + varint(upload.num_examples) + upload.data


def discard_record(client_id: int) -> bytes:
    """Return the record of a discarded upload."""
    return DISCARD + varint(client_id)


def broadcast_record(broadcast: Broadcast) -> bytes:
    """Return the record of a finished round."""
    return BROADCAST + broadcast.data
