"""``join``: a client that takes part in a federation on a broker."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from fedtern.core.errors import NonFiniteError
from fedtern.core.extras import require
from fedtern.core.layout import Vector
from fedtern.core.protocol import Sent
from fedtern.federation.interfaces import ClientLike
from fedtern.transports.mqtt.broker import Attempts, Broker
from fedtern.transports.mqtt.connection import Connection, connect
from fedtern.transports.mqtt.member import Member
from fedtern.transports.mqtt.topics import DOWN, Topics

log = logging.getLogger("fedtern.mqtt")


@dataclass(frozen=True, eq=False)
class Delta:
    """What training has changed, for those who have it at hand; see ``Client.send_delta``."""

    values: ArrayLike
    moments: ArrayLike | None = None


Train = Callable[[Vector, int], Any]
"""From weights and a round to new weights, or a ``Delta``; it may be a coroutine function."""


async def join(
    client: ClientLike,
    train: Train,
    broker: Broker,
    *,
    examples: int = 1,
    on_upload: Callable[[Sent], None] | None = None,
    on_round: Callable[[Member], None] | None = None,
) -> None:
    """Take part in a federation until it ends, or until this is cancelled.

    ``train`` gets a copy of the weights and the round's number, in a thread of its own unless it
    is a coroutine function. ``examples`` are how many it trains on, for methods that weight clients
    by that. ``on_upload`` is called with each upload before it is sent, ``on_round`` whenever the
    client has moved on. With a ``DurableClient`` it goes on after a kill where it was.
    """
    aiomqtt = require("aiomqtt", "mqtt", "fedtern.transports.mqtt.join")
    member = Member(client, examples)
    topics, attempts = member.topics, Attempts(broker)
    # The same for all its connections: a new one ends the last, whose will is heard before it.
    name = topics.identifier(client.client_id)
    while True:
        try:
            async with connect(broker, name, member.farewell()) as line:
                attempts.connected()
                await line.publish(member.connected(time.monotonic()))
                # At most once: what a connection loses, catching up brings back.
                for topic in (topics.of(DOWN, client.client_id), topics.round):
                    await line.subscribe(topic, qos=0)
                log.info("joined %s on %s", topics.federation, broker.address)
                try:
                    await _converse(line, member, train, on_upload, on_round)
                    return
                finally:
                    # A connection that is closed in good order leaves no last will.
                    with suppress(aiomqtt.MqttError):
                        await line.publish([member.farewell()])
        except aiomqtt.MqttError as error:
            await attempts.failed(error)


async def _converse(
    line: Connection,
    member: Member,
    train: Train,
    on_upload: Callable[[Sent], None] | None,
    on_round: Callable[[Member], None] | None,
) -> None:
    refused = -1  # a round whose training came to nothing that can be sent
    while not member.ended:
        # What came during a long training is heard first: it may be for rounds that are over.
        if member.wanted and member.client.round != refused and line.idle:
            sent = await _trained(member, train)
            if sent is None:
                refused = member.client.round
                continue
            if on_upload is not None:
                on_upload(sent)
            await line.publish([member.upload(sent.data)])
        now, wakes = time.monotonic(), member.wakes
        message = await line.hear(None if wakes is None else max(wakes - now, 0.0))
        now, round = time.monotonic(), member.client.round
        answers = member.tick(now) if message is None else member.heard(*message, now)
        if member.client.round != round and on_round is not None:
            on_round(member)
        await line.publish(answers)


async def _trained(member: Member, train: Train) -> Sent | None:
    """The upload that training leads to; None where it went wrong.

    Announcements wait meanwhile. One that ends the round settles the upload like any other that
    came too late: what was learned goes back into the residual.
    """
    client = member.client
    weights, round = client.weights.copy(), client.round
    if inspect.iscoroutinefunction(train):
        result = await train(weights, round)
    else:
        result = await asyncio.to_thread(train, weights, round)
    try:
        if isinstance(result, Delta):
            return client.send_delta(result.values, result.moments)
        return client.send(result)
    except NonFiniteError as error:
        log.error("round %s: not sent: %s", round, error)
        return None


async def about(broker: Broker, federation: str, client: int) -> bytes:
    """What a federation is about, as soon as its server says so."""
    aiomqtt = require("aiomqtt", "mqtt", "fedtern.transports.mqtt.join")
    topics, attempts = Topics(federation), Attempts(broker)
    while True:
        try:
            async with connect(broker, topics.identifier(client), None) as line:
                attempts.connected()
                await line.subscribe(topics.about, qos=1)
                found = await line.hear(5.0)
                if found is None:
                    log.info("waiting for somebody to serve %s", federation)
                    found = await line.hear(None)
                if found is not None:
                    return found[1]
        except aiomqtt.MqttError as error:
            await attempts.failed(error)
