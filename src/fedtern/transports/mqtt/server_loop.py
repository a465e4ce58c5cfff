"""``serve``: a federation's server on a broker."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable

from fedtern.core.extras import require
from fedtern.federation.interfaces import ServerLike
from fedtern.federation.round_policy import RoundPolicy
from fedtern.transports.mqtt.broker import Attempts, Broker
from fedtern.transports.mqtt.connection import Connection, connect
from fedtern.transports.mqtt.coordinator import Coordinator
from fedtern.transports.mqtt.limits import Limits
from fedtern.transports.mqtt.stats import Stats
from fedtern.transports.mqtt.topics import ALIVE, ASK, UP, Publish

log = logging.getLogger("fedtern.mqtt")

OnRound = Callable[[Coordinator], Awaitable[None] | None]


async def serve(
    server: ServerLike,
    broker: Broker,
    plan: RoundPolicy | None = None,
    *,
    limits: Limits | None = None,
    stats: Stats | None = None,
    about: bytes | None = None,
    on_round: OnRound | None = None,
    linger: float = 60.0,
) -> None:
    """Run a federation until its plan's rounds are over, or until it is cancelled.

    The server's ``federation`` names the topics. With a ``DurableServer`` it goes on after a kill
    where it was. ``on_round`` is called after each round, and waited for; ``about`` is kept under
    the topic of that name. After the last round, clients that are behind or away have ``linger``
    seconds to hear of it; it ends before if all have.
    """
    aiomqtt = require("aiomqtt", "mqtt", "fedtern.transports.mqtt.serve")
    coordinator = Coordinator(server, plan, limits, stats)
    topics, attempts = coordinator.topics, Attempts(broker)
    name = topics.identifier("server")
    while True:
        try:
            async with connect(broker, name, None) as line:
                attempts.connected()
                # At most once, as everything goes: whoever is not answered says it again.
                for kind in (UP, ASK, ALIVE):
                    await line.subscribe(topics.of(kind, "+"), qos=0)
                if about is not None:
                    await line.publish([Publish(topics.about, about, qos=1, retain=True)])
                log.info("serving %s on %s", topics.federation, broker.address)
                await _converse(line, coordinator, on_round, linger)
                return
        except aiomqtt.MqttError as error:
            await attempts.failed(error)


async def _converse(
    line: Connection, coordinator: Coordinator, on_round: OnRound | None, linger: float
) -> None:
    answers = coordinator.connected(time.monotonic(), line.longest)
    end: float | None = None
    while True:
        with coordinator.stats.phase("publish"):
            await line.publish(answers)
        now = time.monotonic()
        if coordinator.rounds.ended:
            end = now + linger if end is None else end
            if now >= end or coordinator.rounds.all_clients_left:
                return
        wakes = end if end is not None else coordinator.rounds.next_tick
        message = await line.hear(None if wakes is None else max(wakes - now, 0.0))
        rounds = coordinator.server.round
        answers = _answers(coordinator, message)
        if coordinator.server.round > rounds and on_round is not None:
            # The cohort hears of its round first: it can train in the meantime.
            announced, answers, began = answers, [], time.monotonic()
            try:
                await line.publish(announced)
            finally:  # the round has ended, whether or not anybody could be told
                if inspect.isawaitable(waiting := on_round(coordinator)):
                    await waiting
            coordinator.rounds.extend_deadline(time.monotonic() - began)


def _answers(coordinator: Coordinator, message: tuple[str, bytes] | None) -> list[Publish]:
    now = time.monotonic()
    if message is None:
        return coordinator.tick(now)
    topic, payload = message
    found = coordinator.topics.read(topic)
    return [] if found is None else coordinator.heard(*found, payload, now)
