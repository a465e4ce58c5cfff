"""Topics of a federation, and messages on their way to them. ``docs/format.md`` describes both."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

# Kinds of topics that each client has one of.
UP = "up"  # uploads
ASK = "ask"  # requests to catch up
ALIVE = "alive"  # presence
DOWN = "down"  # answers of the server
SECURE = "secure"  # messages of the server in secure rounds

# Payloads of a client's presence topic.
PRESENT = b"\1"  # retained while the client is connected
ABSENT = b""  # makes the broker delete the retained message


@dataclass(frozen=True)
class Publish:
    """A message to publish."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True)
class Topics:
    """Names of a federation's topics.

    >>> Topics("wards").of("up", 17)
    'fedtern/wards/up/17'
    >>> Topics("wards").parse("fedtern/wards/up/17")
    ('up', 17)

    Raises:
        ValueError: the federation's name cannot be part of a topic.

    """

    federation: str

    def __post_init__(self) -> None:
        name = self.federation
        if not name or len(name.encode()) > 200 or not name.isprintable() or set(name) & set("/+#"):
            raise ValueError(
                "on MQTT a federation's name must have 1 to 200 bytes of printable characters and"
                f" no '/', '+' or '#', got {name!r}"
            )

    @property
    def round(self) -> str:
        """Topic of the newest announcement, from the server to all clients."""
        return f"fedtern/{self.federation}/round"

    @property
    def about(self) -> str:
        """Topic of the federation's description, for clients that do not know it."""
        return f"fedtern/{self.federation}/about"

    def new_identifier(self, role: int | str) -> str:
        """Return an MQTT client identifier, different each time.

        A broker closes a connection if another one with the same identifier comes. So identifiers
        must be hard to guess.
        """
        return f"fedtern-{self.federation}-{role}-{secrets.token_hex(8)}"

    def of(self, kind: str, client: int | str) -> str:
        """Return a client's topic; with ``+`` as client, the pattern for all clients."""
        return f"fedtern/{self.federation}/{kind}/{client}"

    def parse(self, topic: str) -> tuple[str, int] | None:
        """Return the kind and the client of a client's topic; None for other topics."""
        first, _, rest = topic.partition(f"/{self.federation}/")
        kind, _, number = rest.partition("/")
        # Each client has one spelling: an ACL that allows 007 must not allow messages as client 7.
        if first != "fedtern" or not number.isascii() or not number.isdigit():
            return None
        client = int(number) if len(number) <= 20 else 1 << 64
        return (kind, client) if client < 1 << 64 and str(client) == number else None
