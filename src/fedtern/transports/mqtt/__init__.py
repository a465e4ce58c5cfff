"""Federations over any MQTT 5 broker.

``serve`` runs a ``Server`` on a broker, ``join`` a ``Client``. Both continue after restarts of the
broker and of each other. ``MqttServer`` and ``MqttClient`` are the two sides without a network.
"""

from fedtern.federation.round_policy import AllClients, RoundPolicy, Sample, Scheduled
from fedtern.transports.mqtt.broker import Broker
from fedtern.transports.mqtt.client import Delta, MqttClient
from fedtern.transports.mqtt.client_loop import join
from fedtern.transports.mqtt.limits import Limits
from fedtern.transports.mqtt.server import MqttServer
from fedtern.transports.mqtt.server_loop import serve
from fedtern.transports.mqtt.stats import Stats

__all__ = [
    "AllClients",
    "Broker",
    "Delta",
    "Limits",
    "MqttClient",
    "MqttServer",
    "RoundPolicy",
    "Sample",
    "Scheduled",
    "Stats",
    "join",
    "serve",
]
