"""A federation over any MQTT 5 broker: a broadcast is one publish.

``serve`` runs one around a ``Server``, ``join`` takes part in one with a ``Client``; both go on
through restarts of the broker and of each other. ``Coordinator`` and ``Member`` are what they do
without the network.
"""

from fedtern.mqtt.broker import Broker
from fedtern.mqtt.coordinator import Coordinator
from fedtern.mqtt.joining import Delta, join
from fedtern.mqtt.limits import Limits
from fedtern.mqtt.member import Member
from fedtern.mqtt.plan import Everybody, Plan, Sample, Scheduled
from fedtern.mqtt.serving import serve
from fedtern.mqtt.stats import Stats

__all__ = [
    "Broker",
    "Coordinator",
    "Delta",
    "Everybody",
    "Limits",
    "Member",
    "Plan",
    "Sample",
    "Scheduled",
    "Stats",
    "join",
    "serve",
]
