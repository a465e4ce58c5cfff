"""Records of a server's changes. A store writes them, and ``Server.replay`` reads them."""

from __future__ import annotations

import struct

from fedtern.core.layout import Vector
from fedtern.core.protocol.events import Accepted
from fedtern.core.protocol.messages import Broadcast
from fedtern.core.wire import floats_view, varint

# The first byte of a record.
UPLOAD = b"U"
WEIGHTED_UPLOAD = b"W"  # with a number of examples that is not whole
DISCARD = b"D"
BROADCAST = b"B"
EXTERNAL_BROADCAST = b"E"  # of a round whose delta was given

WEIGHT = struct.Struct("<d")


def upload_record(upload: Accepted) -> bytes:
    """Return the record of an accepted upload."""
    client_id = varint(upload.client_id)
    if isinstance(upload.num_examples, int):
        return UPLOAD + client_id + varint(upload.num_examples) + upload.data
    return WEIGHTED_UPLOAD + client_id + WEIGHT.pack(upload.num_examples) + upload.data


def discard_record(client_id: int) -> bytes:
    """Return the record of a discarded upload."""
    return DISCARD + varint(client_id)


def broadcast_record(broadcast: Broadcast) -> bytes:
    """Return the record of a finished round."""
    return BROADCAST + broadcast.data


def external_record(broadcast: Broadcast, delta: Vector) -> bytes:
    """Return the record of a finished round whose delta was aggregated elsewhere."""
    return b"".join((EXTERNAL_BROADCAST, floats_view(delta), broadcast.data))
