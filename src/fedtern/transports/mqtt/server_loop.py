"""``serve``: a federation's server on a broker."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from fedtern.core.extras import require
from fedtern.federation.interfaces import ServerLike
from fedtern.federation.round_policy import RoundPolicy
from fedtern.privacy.secure import FIRST_QUANTUM
from fedtern.transports.mqtt.broker import Broker, Reconnection
from fedtern.transports.mqtt.connection import Connection, connect
from fedtern.transports.mqtt.limits import Limits
from fedtern.transports.mqtt.server import MqttServer
from fedtern.transports.mqtt.stats import Stats
from fedtern.transports.mqtt.topics import Publish

log = logging.getLogger("fedtern.mqtt")

OnRound = Callable[[MqttServer], Awaitable[None] | None]


async def serve(
    server: ServerLike,
    broker: Broker,
    policy: RoundPolicy | None = None,
    *,
    limits: Limits | None = None,
    stats: Stats | None = None,
    about: bytes | None = None,
    on_round: OnRound | None = None,
    linger: float = 60.0,
    quantum: float = FIRST_QUANTUM,
) -> None:
    """Run a federation until all rounds of its policy are finished, or until it is cancelled.

    With a ``DurableServer`` it continues after a crash in the round it was in.

    Args:
        server: accepts uploads and makes broadcasts. Its ``federation`` names the topics.
        broker: address and credentials.
        policy: when rounds start and finish.
        limits: sizes and rates of clients' messages.
        stats: counters to add to.
        about: description of the federation, retained under the topic ``about``.
        on_round: called, and awaited, after each round.
        linger: seconds that clients have after the last round to receive its broadcast. The server
            leaves earlier if all clients have left.
        quantum: for secure aggregation only: the quantum of the next round, which the last process
            had in ``MqttServer.secure.quantum``. Pass it to continue after a restart as before.

    Raises:
        BrokerError: the broker refuses the connection, or denies a topic.

    """
    aiomqtt = require("aiomqtt", "mqtt", "fedtern.transports.mqtt.serve")
    mqtt_server = MqttServer(server, policy, limits, stats, quantum)
    topics = mqtt_server.topics
    identifier = topics.new_identifier("server")
    reconnection = Reconnection(broker)
    max_packet_bytes = mqtt_server.limits.max_received_packet_bytes(server.terms.layout)

    def admit(topic: str, size: int) -> bool:
        return mqtt_server.admit(topic, size, time.monotonic())

    while True:
        try:
            mqtt_server.admission.connection_lost()
            async with connect(broker, identifier, None, admit, max_packet_bytes) as connection:
                reconnection.connected()
                subscriptions = _Subscriptions(connection)
                await subscriptions.set(mqtt_server.filters())
                if about is not None:
                    await connection.publish([Publish(topics.about, about, qos=1, retain=True)])
                log.info("serving %s on %s", topics.federation, broker.address)
                try:
                    await _run(connection, subscriptions, mqtt_server, on_round, linger)
                finally:
                    mqtt_server.admission.on_mute = None
                    subscriptions.close()
                return
        except aiomqtt.MqttError as error:
            await reconnection.failed(error)


class _Subscriptions:
    """Topic filters of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._filters: dict[str, None] = {}
        self._changes: set[asyncio.Task[None]] = set()

    def change(self, filters: Iterable[str]) -> None:
        """Replace the filters without waiting for the broker's answer, which a flood delays."""
        change = asyncio.ensure_future(self.set(filters))
        self._changes.add(change)
        change.add_done_callback(self._changed)

    def _changed(self, change: asyncio.Task[None]) -> None:
        self._changes.discard(change)
        error = None if change.cancelled() else change.exception()
        if error is not None:  # a new connection starts with the right filters
            log.warning("cannot change the subscriptions: %s", error)

    def close(self) -> None:
        """Stop waiting for answers."""
        for change in self._changes:
            change.cancel()

    async def set(self, filters: Iterable[str]) -> None:
        """Replace the filters."""
        current = self._filters
        self._filters = dict.fromkeys(filters)
        new = [name for name in self._filters if name not in current]
        old = [name for name in current if name not in self._filters]
        # QoS 0 is enough: clients repeat messages that are not answered.
        await self._connection.replace_subscriptions(new, old, qos=0)


async def _run(
    connection: Connection,
    subscriptions: _Subscriptions,
    mqtt_server: MqttServer,
    on_round: OnRound | None,
    linger: float,
) -> None:
    answers = mqtt_server.connected(time.monotonic(), connection.max_packet_bytes)
    rounds = mqtt_server.rounds
    end: float | None = None
    muted = None  # clients whose topics are not among the subscriptions

    def on_mute() -> None:
        # At once: until then, the broker forwards the flood.
        subscriptions.change(mqtt_server.filters())
        connection.wake()

    mqtt_server.admission.on_mute = on_mute
    while True:
        if muted is not mqtt_server.admission.muted:
            muted = mqtt_server.admission.muted
            subscriptions.change(mqtt_server.filters())
        with mqtt_server.stats.phase("publish"):
            await connection.publish(answers)
        now = time.monotonic()
        if rounds.ended:
            end = now + linger if end is None else end
            if now >= end or rounds.all_clients_left:
                return
        ticks = [x for x in (end, mqtt_server.next_tick) if x is not None]
        timeout = max(min(ticks) - now, 0.0) if ticks else None
        message = await connection.receive(timeout)
        round_before = mqtt_server.server.round
        answers = _handle(mqtt_server, message)
        if mqtt_server.server.round > round_before and on_round is not None:
            # Announce first: the cohort can train during the callback.
            announcement = answers
            answers = []
            began = time.monotonic()
            try:
                await connection.publish(announcement)
            finally:  # the round is finished, even if the connection was lost
                result = on_round(mqtt_server)
                if inspect.isawaitable(result):
                    await result
            rounds.extend_deadline(time.monotonic() - began)


def _handle(mqtt_server: MqttServer, message: tuple[str, bytes] | None) -> list[Publish]:
    now = time.monotonic()
    if message is None:
        return mqtt_server.tick(now)
    topic, payload = message
    kind_and_client = mqtt_server.topics.parse(topic)
    if kind_and_client is None:
        return []
    kind, client = kind_and_client
    return mqtt_server.handle(kind, client, payload, now)
