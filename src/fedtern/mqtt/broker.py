"""Connections to a broker: where it is, who we are, and what to do when it is gone."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from fedtern.errors import FedternError
from fedtern.extras import require
from fedtern.mqtt.topics import Publish

if TYPE_CHECKING:
    import aiomqtt

log = logging.getLogger("fedtern.mqtt")

# Answers that another attempt would get again: bad credentials, not authorised, banned, bad names.
_FINAL = {0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x90}
_FIRST, _MOST = 0.25, 30.0  # seconds between two attempts
_UNREAD = 10_000  # messages that may wait to be read before others are dropped


class BrokerError(FedternError):
    """The broker cannot be used as we were told to."""


@dataclass(frozen=True)
class Broker:
    """Where a broker is and what it is shown.

    Args:
        host: its name or address.
        port: by default 1883, or 8883 with ``tls``.
        username: what it knows us by.
        password: that goes with the name.
        tls: whether to encrypt, and to check who the broker is.
        ca: a file of certificates to trust in place of the system's.
        certificate: a file with our own certificate, where the broker asks for one.
        key: its private key, where that is in another file.
        keepalive: seconds of silence after which the broker gives us up for dead, halved.

    """

    host: str = "localhost"
    port: int | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    keepalive: int = 60

    @classmethod
    def parse(cls, url: str, **others: Any) -> Broker:
        """A broker as a person types it.

        >>> Broker.parse("mqtts://ward-7@broker.example:8884")
        Broker(host='broker.example', port=8884, username='ward-7', tls=True, ca=None,
        certificate=None, key=None, keepalive=60)
        """
        parts = urlsplit(url if "://" in url else f"mqtt://{url}")
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"a broker looks like mqtt://host:1883 or mqtts://host, got {url!r}")
        named = {"username": parts.username, "password": parts.password}
        found = {name: unquote(text) for name, text in named.items() if text is not None}
        given = {name: value for name, value in others.items() if value is not None}
        tls = parts.scheme == "mqtts"
        return cls(parts.hostname, parts.port, tls=tls, **{**found, **given})

    @property
    def address(self) -> str:
        """The host and the port."""
        return f"{self.host}:{self.port or (8883 if self.tls else 1883)}"

    def context(self) -> ssl.SSLContext | None:
        """What TLS needs to know; None without it."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(f) for f in (self.ca, self.certificate, self.key) if f)
            raise BrokerError(f"cannot use the certificates in {files}: {error}") from error
        return context


class Line:
    """An open connection."""

    def __init__(self, client: aiomqtt.Client, heard: asyncio.Queue[aiomqtt.Message]) -> None:
        self.client = client
        self._heard = heard
        self._next: asyncio.Task[aiomqtt.Message] | None = None
        # Ends with the connection, and with what ended it: no message comes this way.
        self._listening = asyncio.ensure_future(anext(client.messages))

    async def publish(self, messages: list[Publish]) -> None:
        """Hand messages over to the broker, in their order."""
        for m in messages:
            sending = asyncio.ensure_future(
                self.client.publish(m.topic, m.payload, m.qos, m.retain)
            )
            await self._unless_lost(sending, None)
            await sending

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


@asynccontextmanager
async def connect(broker: Broker, identifier: str, will: Publish | None) -> AsyncIterator[Line]:
    """A connection that leaves nothing behind at the broker but what was retained."""
    library = require("aiomqtt", "mqtt", "fedtern.mqtt")
    heard: asyncio.Queue[aiomqtt.Message] = asyncio.Queue(_UNREAD)
    last = will and library.Will(will.topic, will.payload, will.qos, will.retain)
    client = library.Client(
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
        line = Line(client, heard)
        try:
            yield line
        finally:
            line.close()


class Attempts:
    """How long to wait before connecting again, and whether to."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._pause = _FIRST

    def succeeded(self) -> None:
        """There is a connection: the next failure is the first."""
        self._pause = _FIRST

    async def failed(self, error: Exception) -> None:
        """Wait a little longer each time; raise what another attempt cannot mend."""
        if getattr(getattr(error, "rc", None), "value", None) in _FINAL:
            raise BrokerError(f"the broker at {self.broker.address} turned us away: {error}")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):  # all that the library leaves of it
            raise BrokerError(f"the broker at {self.broker.address} is not trusted: {error}")
        # At random, or a thousand clients would come back in the same moment.
        pause = self._pause * random.uniform(0.5, 1.0)
        log.warning("no broker at %s (%s): again in %.1f s", self.broker.address, error, pause)
        self._pause = min(2 * self._pause, _MOST)
        await asyncio.sleep(pause)
