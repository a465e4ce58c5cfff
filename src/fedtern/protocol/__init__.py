"""The two sides of a federation as objects that take and return bytes and never do I/O."""

from fedtern.protocol.client import Client
from fedtern.protocol.messages import Broadcast, Call, Upload
from fedtern.protocol.records import broadcast_record, discard_record, upload_record
from fedtern.protocol.server import Server
from fedtern.protocol.terms import Terms
from fedtern.protocol.uplink import Uplink

__all__ = [
    "Broadcast",
    "Call",
    "Client",
    "Server",
    "Terms",
    "Uplink",
    "Upload",
    "broadcast_record",
    "discard_record",
    "upload_record",
]
