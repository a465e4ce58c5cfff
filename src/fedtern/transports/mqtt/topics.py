"""Where messages go, and what is around them there. ``docs/format.md`` has it in prose."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from fedtern.core.errors import DecodeError
from fedtern.core.wire import Reader, varint

UP, ASK, ALIVE, DOWN = "up", "ask", "alive", "down"
HERE = b"\1"  # what is kept under a client's ``alive`` while it is connected
GONE = b""  # which makes a broker forget what it kept there


@dataclass(frozen=True)
class Publish:
    """A message on its way to the broker."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


@dataclass(frozen=True)
class Topics:
    """The names of a federation's topics.

    >>> Topics("wards").of("up", 17), Topics("wards").read("fedtern/wards/up/17")
    ('fedtern/wards/up/17', ('up', 17))
    """

    federation: str

    def __post_init__(self) -> None:
        name = self.federation
        if not name or len(name.encode()) > 200 or not name.isprintable() or set(name) & set("/+#"):
            raise ValueError(
                "on MQTT a federation needs a name of printable characters without / + or #,"
                f" got {name!r}"
            )

    @property
    def round(self) -> str:
        """The newest announcement, from the server to everybody."""
        return f"fedtern/{self.federation}/round"

    @property
    def about(self) -> str:
        """What is learned here, for clients that were not told."""
        return f"fedtern/{self.federation}/about"

    def identifier(self, who: int | str) -> str:
        """What a broker may know somebody by; never the same twice.

        A broker hangs up on whoever has the identifier that somebody else connects with.
        """
        return f"fedtern-{self.federation}-{who}-{secrets.token_hex(8)}"

    def of(self, kind: str, client: int | str) -> str:
        """A client's topic; ``+`` in place of a client is those of all."""
        return f"fedtern/{self.federation}/{kind}/{client}"

    def read(self, topic: str) -> tuple[str, int] | None:
        """Which kind of a client's topics it is, and whose; None for any other."""
        first, _, rest = topic.partition(f"/{self.federation}/")
        kind, _, number = rest.partition("/")
        # One spelling a client: 007 would else be another's name for 7.
        if first != "fedtern" or not number.isascii() or not number.isdigit():
            return None
        client = int(number) if len(number) <= 20 else 1 << 64
        return (kind, client) if client < 1 << 64 and str(client) == number else None


@dataclass(frozen=True)
class Announcement:
    """A broadcast or a call, with the seconds there are to upload and whether it is the last."""

    message: bytes
    deadline: float | None = None
    ended: bool = False

    def write(self) -> bytes:
        """``varint 2 x milliseconds + ended | message``; no milliseconds are no deadline."""
        milliseconds = 0 if self.deadline is None else max(round(1000 * self.deadline), 1)
        return varint(2 * milliseconds + self.ended) + self.message

    @classmethod
    def read(cls, payload: bytes) -> Announcement:
        """Undo ``write``; the message is not looked at."""
        reader = Reader(payload)
        milliseconds, ended = divmod(reader.varint(), 2)
        return cls(reader.rest(), milliseconds / 1000 or None, bool(ended))


def write_upload(examples: int, upload: bytes) -> bytes:
    """``varint examples | upload``."""
    return varint(examples) + upload


def read_upload(payload: bytes) -> tuple[int, bytes]:
    """Undo ``write_upload``."""
    reader = Reader(payload)
    return reader.varint(), reader.rest()


def write_ask(since: int) -> bytes:
    """``varint since + 1``."""
    return varint(since + 1)


def read_ask(payload: bytes) -> int:
    """Undo ``write_ask``."""
    reader = Reader(payload)
    since = reader.varint() - 1
    reader.end()
    return since


@dataclass(frozen=True)
class Chunk:
    """A part of a catch-up."""

    number: int
    of: int
    called: bool  # whether the client is in the cohort of the round that it leads to
    ended: bool  # whether no other round will follow
    part: bytes

    def write(self) -> bytes:
        """``varint number | varint of | byte called + 2 x ended | part``."""
        flags = bytes([self.called + 2 * self.ended])
        return varint(self.number) + varint(self.of) + flags + self.part

    @classmethod
    def read(cls, payload: bytes) -> Chunk:
        """Undo ``write``."""
        reader = Reader(payload)
        number, of, flags = reader.varint(), reader.varint(), reader.byte()
        if number >= of or flags > 3:
            raise DecodeError(f"parcel {number} of {of} with flags {flags}")
        return cls(number, of, bool(flags & 1), bool(flags & 2), reader.rest())


def chunks_of(data: bytes, limit: int, *, called: bool, ended: bool) -> Iterator[Chunk]:
    """A catch-up in parts of at most ``limit`` bytes."""
    parts = [data[at : at + limit] for at in range(0, len(data), limit)]
    for number, part in enumerate(parts):
        yield Chunk(number, len(parts), called, ended, part)
