"""Address and credentials of a broker, and reconnection to it."""

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

# Reason codes that another attempt would get again: bad credentials, not authorized, banned, bad
# names, and messages that are too long (a protocol error to some brokers) or not acceptable.
PERMANENT_CODES = {0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x90, 0x95, 0x99}

_FIRST_PAUSE = 0.25  # seconds before the second attempt; each failure doubles them
_LAST_PAUSE = 30.0
_STABLE_AFTER = 10.0  # seconds after which a connection counts as a success


class BrokerError(FedternError):
    """The broker cannot be used with these settings."""


@dataclass(frozen=True)
class Broker:
    """Address and credentials of a broker.

    Args:
        host: name or address.
        port: by default 1883, or 8883 with ``tls``.
        username: MQTT user name.
        password: MQTT password.
        tls: whether to encrypt the connection and to verify the broker's certificate.
        ca: file of certificates to trust instead of the system's.
        certificate: file of the client certificate, if the broker requires one.
        key: file of its private key, if it is not in ``certificate``.
        keepalive: MQTT keep-alive interval in seconds.

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
    def parse(cls, url: str, **settings: Any) -> Broker:
        """Read a URL; ``settings`` are other fields, of which None are ignored.

        >>> Broker.parse("mqtts://ward-7@broker.example:8884")
        Broker(host='broker.example', port=8884, username='ward-7', tls=True, ca=None,
        certificate=None, key=None, keepalive=60)

        Raises:
            ValueError: the URL is not one of a broker.

        """
        parts = urlsplit(url if "://" in url else f"mqtt://{url}")
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path.strip("/"):
            without_password = url.rpartition("@")[2]
            raise ValueError(
                "a broker URL has the form mqtt://host:1883 or mqtts://host, got"
                f" {without_password!r}"
            )
        credentials = {"username": parts.username, "password": parts.password}
        from_url = {name: unquote(text) for name, text in credentials.items() if text is not None}
        given = {name: value for name, value in settings.items() if value is not None}
        tls = parts.scheme == "mqtts"
        return cls(parts.hostname, parts.port, tls=tls, **{**from_url, **given})

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port or (8883 if self.tls else 1883)}"

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the settings of TLS; None without TLS."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(f) for f in (self.ca, self.certificate, self.key) if f)
            raise BrokerError(f"cannot read the certificates in {files}: {error}") from error
        return context


class Reconnection:
    """Pauses between attempts to connect, which grow until a connection is stable."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._pause = _FIRST_PAUSE
        self._connected_at: float | None = None

    def connected(self) -> None:
        """Report a connection; if it lasts, the next pause is short again."""
        self._connected_at = time.monotonic()

    async def failed(self, error: Exception) -> None:
        """Report a failed or lost connection, and wait before the next attempt.

        Raises:
            BrokerError: another attempt would fail, too.

        """
        address = self.broker.address
        connected_at = self._connected_at
        refusal = _permanent_refusal(error)
        if refusal is not None:
            if connected_at is None:
                raise BrokerError(
                    f"The broker at {address} refused the connection: {refusal}; check user name,"
                    " password and certificate."
                )
            raise BrokerError(
                f"The broker at {address} closed the connection: {refusal}; if our messages are too"
                " long for it, raise its limits (Mosquitto: max_packet_size, message_size_limit)."
            )
        if "CERTIFICATE_VERIFY_FAILED" in str(error):  # the library keeps only the text
            raise BrokerError(
                f"The certificate of the broker at {address} is not trusted: {error}; pass the"
                " certificate of its authority as ca."
            )
        if connected_at is not None and time.monotonic() - connected_at >= _STABLE_AFTER:
            self._pause = _FIRST_PAUSE
        self._connected_at = None
        # Random, so that a thousand clients do not reconnect at the same moment.
        pause = self._pause * random.uniform(0.5, 1.0)
        log.warning("no connection to %s (%s): retrying in %.1f s", address, error, pause)
        self._pause = min(2 * self._pause, _LAST_PAUSE)
        await asyncio.sleep(pause)


def _permanent_refusal(error: BaseException | None) -> BaseException | None:
    """Return the cause that is a permanent refusal by the broker, if there is one."""
    while error is not None:
        if getattr(getattr(error, "rc", None), "value", None) in PERMANENT_CODES:
            return error
        error = error.__cause__
    return None
