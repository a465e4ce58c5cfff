"""``join``: a client of a federation on a broker."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fedtern.core.errors import NonFiniteError
from fedtern.core.extras import require
from fedtern.core.layout import Vector
from fedtern.core.protocol import Sent
from fedtern.federation.interfaces import ClientLike
from fedtern.privacy.secure import Identity
from fedtern.transports.mqtt.broker import Broker, Reconnection
from fedtern.transports.mqtt.client import MqttClient
from fedtern.transports.mqtt.connection import Connection, connect
from fedtern.transports.mqtt.topics import DOWN, SECURE, Topics

log = logging.getLogger("fedtern.mqtt")


Train = Callable[[Vector, int], Any]
"""From weights and a round to new weights or a ``Delta``; it can be a coroutine function."""

OnUpload = Callable[[Sent], None]
OnAdvance = Callable[[MqttClient], None]


async def join(
    client: ClientLike,
    train: Train,
    broker: Broker,
    *,
    num_examples: int = 1,
    identity: Identity | None = None,
    on_upload: OnUpload | None = None,
    on_round: OnAdvance | None = None,
) -> None:
    """Take part in a federation until it ends, or until this is cancelled.

    With a ``DurableClient`` it continues after a crash where it was.

    Args:
        client: follows the weights and makes uploads. Its ``federation`` names the topics.
        train: gets a copy of the weights and the number of the round. It runs in a thread of its
            own unless it is a coroutine function.
        broker: address and credentials.
        num_examples: number of training examples, for methods that weight clients by it.
        identity: signing keys for secure aggregation; None to trust the server with public keys.
        on_upload: called with each new upload before it is published.
        on_round: called each time the client has advanced to a later round.

    Raises:
        BrokerError: the broker refuses the connection, or denies a topic.
        RemoteProtocolError: the server has another model, method or history.

    """
    aiomqtt = require("aiomqtt", "mqtt", "fedtern.transports.mqtt.join")
    mqtt_client = MqttClient(client, num_examples, identity, on_upload)
    topics = mqtt_client.topics
    # All connections have the same identifier. So a new one ends the last one, and the server gets
    # the last will of the old connection before the first message of the new one.
    identifier = topics.new_identifier(client.client_id)
    reconnection = Reconnection(broker)
    while True:
        try:
            async with connect(broker, identifier, mqtt_client.goodbye()) as connection:
                reconnection.connected()
                # QoS 0 is enough: a catch-up replaces lost messages.
                kinds = (DOWN, SECURE) if mqtt_client.is_secure else (DOWN,)
                own = [topics.of(kind, client.client_id) for kind in kinds]
                for topic in (*own, topics.round):
                    await connection.subscribe(topic, qos=0)
                # After the subscriptions: the server answers at once, with the invitation to a
                # secure round, for example.
                await connection.publish(mqtt_client.connected(time.monotonic()))
                log.info("joined %s on %s", topics.federation, broker.address)
                try:
                    await _run(connection, mqtt_client, train, on_round)
                    return
                finally:
                    # Brokers publish the last will only if the connection is lost.
                    with suppress(aiomqtt.MqttError):
                        await connection.publish([mqtt_client.goodbye()])
        except aiomqtt.MqttError as error:
            await reconnection.failed(error)


async def _run(
    connection: Connection,
    mqtt_client: MqttClient,
    train: Train,
    on_round: OnAdvance | None,
) -> None:
    client = mqtt_client.client
    failed_round = -1  # round whose training gave values that cannot be sent
    while not mqtt_client.ended:
        # Read all messages first: during a long training, its round may have finished.
        if mqtt_client.should_train and client.round != failed_round and connection.idle:
            result = await _train(client, train)
            try:
                messages = mqtt_client.trained(result)
            except NonFiniteError as error:
                log.error("round %s: no upload: %s", client.round, error)
                failed_round = client.round
                continue
            await connection.publish(messages)
        next_tick = mqtt_client.next_tick
        timeout = None if next_tick is None else max(next_tick - time.monotonic(), 0.0)
        message = await connection.receive(timeout)
        now = time.monotonic()
        round_before = client.round
        if message is None:
            answers = mqtt_client.tick(now)
        else:
            topic, payload = message
            answers = mqtt_client.receive(topic, payload, now)
        if client.round != round_before and on_round is not None:
            on_round(mqtt_client)
        await connection.publish(answers)


async def _train(client: ClientLike, train: Train) -> Any:
    """Train in this round and return the result.

    Announcements wait meanwhile. If one of them finishes the round, the upload is late and returns
    to the residual.
    """
    weights = client.weights.copy()
    round = client.round
    if inspect.iscoroutinefunction(train):
        return await train(weights, round)
    return await asyncio.to_thread(train, weights, round)


async def fetch_description(broker: Broker, federation: str, client_id: int) -> bytes:
    """Wait for the description of a federation, which its server retains on the broker."""
    aiomqtt = require("aiomqtt", "mqtt", "fedtern.transports.mqtt.join")
    topics = Topics(federation)
    reconnection = Reconnection(broker)
    while True:
        try:
            async with connect(broker, topics.new_identifier(client_id), None) as connection:
                reconnection.connected()
                await connection.subscribe(topics.about, qos=1)
                message = await connection.receive(5.0)
                if message is None:
                    log.info("waiting for a server of federation %s", federation)
                    message = await connection.receive(None)
                if message is not None:
                    _, payload = message
                    return payload
        except aiomqtt.MqttError as error:
            await reconnection.failed(error)
