"""A broker: where it is, who we are, and what to do when it is gone."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fedtern.core.errors import FedternError

log = logging.getLogger("fedtern.mqtt")

# Answers that another attempt would get again: bad credentials, not authorised, banned, bad names,
# messages that are too long (which some brokers call a protocol error) or that it cannot accept.
FINAL = {0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x90, 0x95, 0x99}
_FIRST, _MOST = 0.25, 30.0  # seconds between two attempts
_STEADY = 10.0  # seconds after which a connection was a good one


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
            shown = url.rpartition("@")[2]  # without a password, if there is one
            raise ValueError(f"a broker looks like mqtt://host:1883 or mqtts://host, got {shown!r}")
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


class Attempts:
    """How long to wait before connecting again, and whether to."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._pause = _FIRST
        self._since: float | None = None

    def connected(self) -> None:
        """There is a connection: if it lasts, the next failure is the first."""
        self._since = time.monotonic()

    async def failed(self, error: Exception) -> None:
        """Wait a little longer each time; raise what another attempt cannot mend."""
        place, since = self.broker.address, self._since
        if (answer := _answer(error)) is not None:
            if since is None:
                raise BrokerError(f"the broker at {place} turned us away: {answer}")
            raise BrokerError(
                f"the broker at {place} hung up: {answer}; if our messages are too long for it,"
                " raise its limits (Mosquitto's max_packet_size and message_size_limit)"
            )
        if "CERTIFICATE_VERIFY_FAILED" in str(error):  # all that the library leaves of it
            raise BrokerError(f"the broker at {place} is not trusted: {error}")
        if since is not None and time.monotonic() - since >= _STEADY:
            self._pause = _FIRST
        self._since = None
        # At random, or a thousand clients would come back in the same moment.
        pause = self._pause * random.uniform(0.5, 1.0)
        log.warning("no broker at %s (%s): again in %.1f s", place, error, pause)
        self._pause = min(2 * self._pause, _MOST)
        await asyncio.sleep(pause)


def _answer(error: BaseException | None) -> BaseException | None:
    """The broker's own last word, if it is one that it would repeat."""
    while error is not None:
        if getattr(getattr(error, "rc", None), "value", None) in FINAL:
            return error
        error = error.__cause__
    return None
