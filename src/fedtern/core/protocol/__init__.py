"""Server and client of a federation. They take and return bytes and do no I/O."""

from fedtern.core.protocol.client import Client
from fedtern.core.protocol.events import Accepted, CatchUp, How, Received, Sent
from fedtern.core.protocol.influence import DEFAULT_CAP, Bounded, NormCap
from fedtern.core.protocol.messages import Broadcast, CohortNotice, Upload
from fedtern.core.protocol.privacy import (
    CentralMechanism,
    LocalMechanism,
    Mechanism,
    PrivacySpent,
)
from fedtern.core.protocol.records import (
    broadcast_record,
    discard_record,
    external_record,
    upload_record,
)
from fedtern.core.protocol.server import Server
from fedtern.core.protocol.terms import Terms
from fedtern.core.protocol.uplink import Uplink

__all__ = [
    "DEFAULT_CAP",
    "Accepted",
    "Bounded",
    "Broadcast",
    "CatchUp",
    "CentralMechanism",
    "Client",
    "CohortNotice",
    "How",
    "LocalMechanism",
    "Mechanism",
    "NormCap",
    "PrivacySpent",
    "Received",
    "Sent",
    "Server",
    "Terms",
    "Uplink",
    "Upload",
    "broadcast_record",
    "discard_record",
    "external_record",
    "upload_record",
]
