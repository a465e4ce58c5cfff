"""An open connection to a broker."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fedtern.core.extras import require
from fedtern.transports.mqtt.broker import PERMANENT_CODES, Broker, BrokerError
from fedtern.transports.mqtt.limits import MIN_PACKET_BYTES
from fedtern.transports.mqtt.topics import Publish

if TYPE_CHECKING:
    import aiomqtt

log = logging.getLogger("fedtern.mqtt")

_MAX_UNREAD = 10_000  # messages in the queue; further ones are dropped
_MAX_HEADER = 10  # bytes of a packet that are neither topic nor payload


class Connection:
    """An open connection."""

    def __init__(
        self,
        client: aiomqtt.Client,
        queue: asyncio.Queue[aiomqtt.Message],
        replies: _BrokerReplies,
    ) -> None:
        self._client = client
        self._queue = queue
        self._replies = replies
        self._next: asyncio.Task[aiomqtt.Message] | None = None
        # Never yields a message, because they go to our queue. It ends with the connection, and
        # raises the reason.
        self._closed = asyncio.ensure_future(anext(client.messages))

    @property
    def max_packet_bytes(self) -> int | None:
        """Largest packet that the broker accepts; None if it does not state it."""
        return self._replies.max_packet_bytes

    async def subscribe(self, topic: str, qos: int) -> None:
        """Subscribe to a topic.

        Raises:
            BrokerError: the broker denies the subscription.

        """
        for code in await self._client.subscribe(topic, qos=qos):
            if getattr(code, "is_failure", False):
                raise BrokerError(
                    f"Subscription to {topic} denied ({code}); check the broker's ACL."
                )

    async def publish(self, messages: list[Publish]) -> None:
        """Publish messages in their order.

        Raises:
            BrokerError: a message is too long, or the broker denies it.

        """
        limit = self.max_packet_bytes
        for message in messages:
            size = len(message.payload) + len(message.topic.encode()) + _MAX_HEADER
            if limit is not None and size > limit:
                raise BrokerError(
                    f"The broker accepts packets of at most {limit} bytes, but a message on"
                    f" {message.topic} has {size}; raise its limit (Mosquitto: max_packet_size)."
                )
            sending = asyncio.ensure_future(
                self._client.publish(message.topic, message.payload, message.qos, message.retain)
            )
            await self._wait(sending, None)
            await sending
            self._check_accepted(message.topic)

    def _check_accepted(self, topic: str) -> None:
        code = self._replies.refusal
        self._replies.refusal = None
        if code is None:
            return
        if code.value in PERMANENT_CODES:
            raise BrokerError(f"Publishing to {topic} denied ({code}); check the broker's ACL.")
        log.warning("the broker refused a message on %s: %s", topic, code)

    @property
    def idle(self) -> bool:
        """Whether no received message is waiting."""
        return self._queue.empty() and (self._next is None or not self._next.done())

    async def receive(self, timeout: float | None) -> tuple[str, bytes] | None:
        """Return topic and payload of the next message; None after a timeout."""
        if self._next is None and not self._queue.empty():
            return _topic_and_payload(self._queue.get_nowait())  # fast path of a busy server
        if self._next is None:
            self._next = asyncio.ensure_future(self._queue.get())
        # Not asyncio.wait_for, which can lose a message that arrives at the timeout.
        if not await self._wait(self._next, timeout):
            return None
        message = self._next.result()
        self._next = None
        return _topic_and_payload(message)

    async def _wait(self, task: asyncio.Future[Any], timeout: float | None) -> bool:
        """Wait for a task; if the connection is lost before, raise the reason."""
        await asyncio.wait(
            {task, self._closed}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if not task.done() and self._closed.done():
            task.cancel()
            self._closed.result()
        return task.done()

    def close(self) -> None:
        """Stop the tasks of this object."""
        self._closed.cancel()
        if self._next is not None:
            self._next.cancel()
        if self._closed.done() and not self._closed.cancelled():
            self._closed.exception()  # mark as retrieved: it has been raised already


def _redirect_to(queue: asyncio.Queue[aiomqtt.Message]) -> type[asyncio.Queue[aiomqtt.Message]]:
    """Return a class of queues that put their items into another queue.

    The library's own iterator starts two tasks for each message, and a server reads thousands of
    messages per second.
    """

    class Redirect(asyncio.Queue):  # type: ignore[type-arg]
        def put_nowait(self, item: aiomqtt.Message) -> None:
            queue.put_nowait(item)  # the library logs a full queue

    return Redirect


def _topic_and_payload(message: aiomqtt.Message) -> tuple[str, bytes]:
    payload = message.payload if isinstance(message.payload, bytes) else b""
    return str(message.topic), payload


class _BrokerReplies:
    """Replies of the broker that the library does not pass on."""

    def __init__(self) -> None:
        self.max_packet_bytes: int | None = None
        self.refusal: Any = None  # reason code with which the last message was refused


def _recording(base: type[aiomqtt.Client], replies: _BrokerReplies) -> type[aiomqtt.Client]:
    """Return a subclass of the library's client that records the broker's replies."""

    class Recording(base):  # type: ignore[misc, valid-type]
        def _on_connect(self, *arguments: Any) -> None:
            replies.max_packet_bytes = getattr(arguments[-1], "MaximumPacketSize", None)
            super()._on_connect(*arguments)

        def _on_publish(self, *arguments: Any) -> None:
            if getattr(arguments[-2], "is_failure", False):
                replies.refusal = arguments[-2]
            super()._on_publish(*arguments)

    return Recording


@asynccontextmanager
async def connect(
    broker: Broker, identifier: str, will: Publish | None
) -> AsyncIterator[Connection]:
    """Open a connection with a clean session: the broker keeps nothing but retained messages.

    Args:
        broker: address and credentials.
        identifier: MQTT client identifier.
        will: message that the broker publishes when the connection is lost.

    """
    library = require("aiomqtt", "mqtt", "fedtern.transports.mqtt")
    queue: asyncio.Queue[aiomqtt.Message] = asyncio.Queue(_MAX_UNREAD)
    last_will: Any = will and library.Will(will.topic, will.payload, will.qos, will.retain)
    replies = _BrokerReplies()
    client = _recording(library.Client, replies)(
        broker.host,
        broker.port or (8883 if broker.tls else 1883),
        username=broker.username,
        password=broker.password,
        identifier=identifier,
        protocol=library.ProtocolVersion.V5,
        clean_start=True,
        will=last_will,
        queue_type=_redirect_to(queue),
        keepalive=broker.keepalive,
        tls_context=broker.tls_context(),
        # A round is a few small messages in sequence: Nagle's algorithm would delay each one.
        socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        logger=logging.getLogger("fedtern.mqtt.paho"),
    )
    async with client:
        limit = replies.max_packet_bytes
        if limit is not None and limit < MIN_PACKET_BYTES:
            raise BrokerError(
                f"The broker at {broker.address} accepts packets of at most {limit} bytes; raise"
                f" its limit to {MIN_PACKET_BYTES} or more (Mosquitto: max_packet_size)."
            )
        connection = Connection(client, queue, replies)
        try:
            yield connection
        finally:
            connection.close()
