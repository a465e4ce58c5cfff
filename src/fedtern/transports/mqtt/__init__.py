"""A federation over any MQTT 5 broker: a broadcast is one publish.

``serve`` runs one around a ``Server``, ``join`` takes part in one with a ``Client``; both go on
through restarts of the broker and of each other. ``Coordinator`` and ``Member`` are what they do
without the network.
"""

from fedtern.federation.round_policy import Everybody, RoundPolicy, Sample, Scheduled
from fedtern.transports.mqtt.broker import Broker
from fedtern.transports.mqtt.client_loop import Delta, join
from fedtern.transports.mqtt.coordinator import Coordinator
from fedtern.transports.mqtt.limits import Limits
from fedtern.transports.mqtt.member import Member
from fedtern.transports.mqtt.server_loop import serve
from fedtern.transports.mqtt.stats import Stats

__all__ = [
    "Broker",
    "Coordinator",
    "Delta",
    "Everybody",
    "Limits",
    "Member",
    "RoundPolicy",
    "Sample",
    "Scheduled",
    "Stats",
    "join",
    "serve",
]
