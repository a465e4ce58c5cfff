"""An open connection to a broker: what is published on it, what is heard, what is refused."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fedtern.core.extras import require
from fedtern.transports.mqtt.broker import FINAL, Broker, BrokerError
from fedtern.transports.mqtt.limits import LEAST
from fedtern.transports.mqtt.topics import Publish

if TYPE_CHECKING:
    import aiomqtt

log = logging.getLogger("fedtern.mqtt")

_UNREAD = 10_000  # messages that may wait to be read before others are dropped
_HEADER = 10  # bytes of a packet that are neither topic nor payload, at most


class Connection:
    """An open connection."""

    def __init__(
        self, client: aiomqtt.Client, heard: asyncio.Queue[aiomqtt.Message], answers: _Answers
    ) -> None:
        self._client, self._heard, self._answers = client, heard, answers
        self._next: asyncio.Task[aiomqtt.Message] | None = None
        # Ends with the connection, and with what ended it: no message comes this way.
        self._listening = asyncio.ensure_future(anext(client.messages))

    @property
    def longest(self) -> int | None:
        """Bytes of the longest message that the broker takes; None if it does not say."""
        return self._answers.longest

    async def subscribe(self, topic: str, qos: int) -> None:
        """Hear what is published there from now on."""
        for code in await self._client.subscribe(topic, qos=qos):
            if getattr(code, "is_failure", False):
                raise BrokerError(
                    f"the broker does not let us hear {topic} ({code}): see who may read what there"
                )

    async def publish(self, messages: list[Publish]) -> None:
        """Hand messages over to the broker, in their order."""
        for m in messages:
            size = len(m.payload) + len(m.topic.encode()) + _HEADER
            if self.longest is not None and size > self.longest:
                raise BrokerError(
                    f"the broker carries messages of at most {self.longest} bytes, and ours under"
                    f" {m.topic} takes {size}: raise its limit (Mosquitto's max_packet_size)"
                )
            sending = asyncio.ensure_future(
                self._client.publish(m.topic, m.payload, m.qos, m.retain)
            )
            await self._unless_lost(sending, None)
            await sending
            self._accepted(m.topic)

    def _accepted(self, topic: str) -> None:
        code, self._answers.refusal = self._answers.refusal, None
        if code is None:
            return
        if code.value in FINAL:
            raise BrokerError(
                f"the broker does not let us publish under {topic} ({code}): see who may write what"
                " there"
            )
        log.warning("the broker refused a message under %s: %s", topic, code)

    @property
    def idle(self) -> bool:
        """Whether all that has come was heard."""
        return self._heard.empty() and (self._next is None or not self._next.done())

    async def hear(self, timeout: float | None) -> tuple[str, bytes] | None:
        """The next message's topic and payload; None if there was none in time."""
        if self._next is None and not self._heard.empty():
            return _plain(self._heard.get_nowait())  # as on any busy line
        if self._next is None:
            self._next = asyncio.ensure_future(self._heard.get())
        # Not wait_for, which may lose a message that comes as time runs out.
        if not await self._unless_lost(self._next, timeout):
            return None
        message, self._next = self._next.result(), None
        return _plain(message)

    async def _unless_lost(self, task: asyncio.Future[Any], timeout: float | None) -> bool:
        """Wait for something; raise what ended the connection if it has ended before."""
        await asyncio.wait(
            {task, self._listening}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if not task.done() and self._listening.done():
            task.cancel()
            self._listening.result()
        return task.done()

    def close(self) -> None:
        """Stop listening."""
        self._listening.cancel()
        if self._next is not None:
            self._next.cancel()
        if self._listening.done() and not self._listening.cancelled():
            self._listening.exception()  # which has been told already


def _aside(heard: asyncio.Queue[aiomqtt.Message]) -> type[asyncio.Queue[aiomqtt.Message]]:
    """A kind of queue that puts what it gets into another.

    The library's own way to read messages takes two tasks for each of them; a server has thousands
    a second to read.
    """

    class Aside(asyncio.Queue):  # type: ignore[type-arg]
        def put_nowait(self, item: aiomqtt.Message) -> None:
            heard.put_nowait(item)  # full, it is the library that says so

    return Aside


def _plain(message: aiomqtt.Message) -> tuple[str, bytes]:
    payload = message.payload if isinstance(message.payload, bytes) else b""
    return str(message.topic), payload


class _Answers:
    """What a broker says that the library does not pass on."""

    def __init__(self) -> None:
        self.longest: int | None = None
        self.refusal: Any = None  # the reason for which the last message was refused


def _attentive(kind: type[aiomqtt.Client], answers: _Answers) -> type[aiomqtt.Client]:
    """A kind of the library's client that keeps them."""

    class Attentive(kind):  # type: ignore[misc, valid-type]
        def _on_connect(self, *arguments: Any) -> None:
            answers.longest = getattr(arguments[-1], "MaximumPacketSize", None)
            super()._on_connect(*arguments)

        def _on_publish(self, *arguments: Any) -> None:
            if getattr(arguments[-2], "is_failure", False):
                answers.refusal = arguments[-2]
            super()._on_publish(*arguments)

    return Attentive


@asynccontextmanager
async def connect(
    broker: Broker, identifier: str, will: Publish | None
) -> AsyncIterator[Connection]:
    """A connection that leaves nothing behind at the broker but what was retained."""
    library = require("aiomqtt", "mqtt", "fedtern.transports.mqtt")
    heard: asyncio.Queue[aiomqtt.Message] = asyncio.Queue(_UNREAD)
    last: Any = will and library.Will(will.topic, will.payload, will.qos, will.retain)
    answers = _Answers()
    client = _attentive(library.Client, answers)(
        broker.host,
        broker.port or (8883 if broker.tls else 1883),
        username=broker.username,
        password=broker.password,
        identifier=identifier,
        protocol=library.ProtocolVersion.V5,
        clean_start=True,
        will=last,
        queue_type=_aside(heard),
        keepalive=broker.keepalive,
        tls_context=broker.context(),
        # A round is a few small messages one after the other: none may wait for company.
        socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        logger=logging.getLogger("fedtern.mqtt.paho"),
    )
    async with client:
        if answers.longest is not None and answers.longest < LEAST:
            raise BrokerError(
                f"the broker at {broker.address} carries messages of at most {answers.longest}"
                f" bytes: raise its limit to {LEAST} or more (Mosquitto's max_packet_size)"
            )
        line = Connection(client, heard, answers)
        try:
            yield line
        finally:
            line.close()
