"""An open connection to a broker."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fedtern.core.extras import require
from fedtern.transports.mqtt.broker import PERMANENT_CODES, Broker, BrokerError
from fedtern.transports.mqtt.buffered_socket import BufferedSocket
from fedtern.transports.mqtt.limits import MIN_PACKET_BYTES, RECEIVE_MAXIMUM
from fedtern.transports.mqtt.topics import Publish

if TYPE_CHECKING:
    import aiomqtt

log = logging.getLogger("fedtern.mqtt")

_MAX_UNREAD = 10_000  # messages in the queue; further ones are dropped
_MAX_HEADER = 10  # bytes of a packet that are neither topic nor payload
_FILTERS_PER_PACKET = 500

Received = tuple[str, bytes]
"""Topic and payload."""

Admit = Callable[[str, int], bool]
"""From the topic and the length of the payload to whether to queue the message."""


class Connection:
    """An open connection."""

    def __init__(
        self,
        client: aiomqtt.Client,
        queue: asyncio.Queue[Received],
        replies: _BrokerReplies,
    ) -> None:
        self._client = client
        self._queue = queue
        self._replies = replies
        self._next: asyncio.Task[Received] | None = None
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
        await self.subscribe_all([topic], qos)

    async def replace_subscriptions(self, new: Iterable[str], old: Iterable[str], qos: int) -> None:
        """Subscribe to topics, and then end other subscriptions, so that no message is lost.

        The requests do not wait for each other: in a flood, the first answer can take long.

        Raises:
            BrokerError: the broker denies a subscription.

        """
        await asyncio.gather(self.subscribe_all(new, qos), self.unsubscribe_all(old))

    async def subscribe_all(self, topics: Iterable[str], qos: int) -> None:
        """Subscribe to several topics.

        Raises:
            BrokerError: the broker denies a subscription.

        """
        from paho.mqtt.subscribeoptions import SubscribeOptions

        options = SubscribeOptions(qos=qos)
        parts = _parts(topics)
        requests = [self._client.subscribe([(topic, options) for topic in part]) for part in parts]
        for part, codes in zip(parts, await asyncio.gather(*requests), strict=True):
            for topic, code in zip(part, codes, strict=False):
                if getattr(code, "is_failure", False):
                    raise BrokerError(
                        f"Subscription to {topic} denied ({code}); check the broker's ACL."
                    )

    async def unsubscribe_all(self, topics: Iterable[str]) -> None:
        """End the subscriptions to several topics."""
        await asyncio.gather(*(self._client.unsubscribe(part) for part in _parts(topics)))

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

    def wake(self) -> None:
        """Let ``receive`` return an empty message on an empty topic."""
        self._queue.put_nowait(("", b""))

    async def receive(self, timeout: float | None) -> Received | None:
        """Return topic and payload of the next message; None after a timeout."""
        if self._next is None and not self._queue.empty():
            return self._queue.get_nowait()  # fast path of a busy server
        if self._next is None:
            self._next = asyncio.ensure_future(self._queue.get())
        # Not asyncio.wait_for, which can lose a message that arrives at the timeout.
        if not await self._wait(self._next, timeout):
            return None
        message = self._next.result()
        self._next = None
        return message

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


def _parts(topics: Iterable[str]) -> list[list[str]]:
    """Split topics into lists that fit into one packet each."""
    ordered = list(topics)
    starts = range(0, len(ordered), _FILTERS_PER_PACKET)
    return [ordered[start : start + _FILTERS_PER_PACKET] for start in starts]


class _BrokerReplies:
    """Replies of the broker that the library does not pass on."""

    def __init__(self) -> None:
        self.max_packet_bytes: int | None = None
        self.refusal: Any = None  # reason code with which the last message was refused


def _recording(
    base: type[aiomqtt.Client],
    replies: _BrokerReplies,
    queue: asyncio.Queue[Received],
    admit: Admit | None,
) -> type[aiomqtt.Client]:
    """Return a subclass of the library's client with a queue of ours.

    It records the broker's replies. It decides about each message as soon as the message is off
    the socket. The library's own queue starts two tasks for each message, and a server reads
    thousands of messages per second.
    """

    class Recording(base):  # type: ignore[misc, valid-type]
        def _on_socket_open(self, client: Any, userdata: Any, sock: Any) -> None:
            client._sock = BufferedSocket(sock)
            super()._on_socket_open(client, userdata, sock)

        def _on_connect(self, *arguments: Any) -> None:
            replies.max_packet_bytes = getattr(arguments[-1], "MaximumPacketSize", None)
            super()._on_connect(*arguments)

        def _on_publish(self, *arguments: Any) -> None:
            if getattr(arguments[-2], "is_failure", False):
                replies.refusal = arguments[-2]
            super()._on_publish(*arguments)

        def _on_message(self, *arguments: Any) -> None:
            message = arguments[-1]
            topic = message.topic
            payload = message.payload
            if admit is not None and not admit(topic, len(payload)):
                return
            if queue.full():
                log.debug("dropped a message on %s: %s messages wait", topic, queue.qsize())
                return
            queue.put_nowait((topic, payload))

    return Recording


def _connect_properties(max_packet_bytes: int | None) -> Any:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.ReceiveMaximum = RECEIVE_MAXIMUM
    if max_packet_bytes is not None:
        properties.MaximumPacketSize = max_packet_bytes
    return properties


@asynccontextmanager
async def connect(
    broker: Broker,
    identifier: str,
    will: Publish | None,
    admit: Admit | None = None,
    max_packet_bytes: int | None = None,
) -> AsyncIterator[Connection]:
    """Open a connection with a clean session: the broker keeps nothing but retained messages.

    Args:
        broker: address and credentials.
        identifier: MQTT client identifier.
        will: message that the broker publishes when the connection is lost.
        admit: decides about each message before it is queued. Without it, all messages are queued,
            up to a fixed number.
        max_packet_bytes: largest packet that the broker may send. It drops larger messages.

    """
    library = require("aiomqtt", "mqtt", "fedtern.transports.mqtt")
    # Admitted messages are bounded in bytes.
    queue: asyncio.Queue[Received] = asyncio.Queue(_MAX_UNREAD if admit is None else 0)
    last_will: Any = will and library.Will(will.topic, will.payload, will.qos, will.retain)
    replies = _BrokerReplies()
    client = _recording(library.Client, replies, queue, admit)(
        broker.host,
        broker.port or (8883 if broker.tls else 1883),
        username=broker.username,
        password=broker.password,
        identifier=identifier,
        protocol=library.ProtocolVersion.V5,
        clean_start=True,
        will=last_will,
        properties=_connect_properties(max_packet_bytes),
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
