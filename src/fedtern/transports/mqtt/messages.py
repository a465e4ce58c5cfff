"""Payloads of MQTT messages. ``docs/format.md`` describes them.

Catch-ups are sent in chunks; these are in ``reassembly``.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtern.core.wire import Reader, varint


@dataclass(frozen=True)
class Announcement:
    """Message of the server to all clients.

    Attributes:
        message: a broadcast or a cohort notice.
        deadline: seconds to upload; None for no deadline.
        ended: whether no other round follows.

    """

    message: bytes
    deadline: float | None = None
    ended: bool = False

    def write(self) -> bytes:
        """Return ``varint 2 x milliseconds + ended | message``; 0 ms stands for no deadline."""
        milliseconds = 0 if self.deadline is None else max(round(1000 * self.deadline), 1)
        return varint(2 * milliseconds + self.ended) + self.message

    @classmethod
    def read(cls, payload: bytes) -> Announcement:
        """Reverse ``write``, without reading the message."""
        reader = Reader(payload)
        milliseconds, ended = divmod(reader.varint(), 2)
        return cls(reader.rest(), milliseconds / 1000 or None, bool(ended))


def write_upload(num_examples: int, upload: bytes) -> bytes:
    """Return ``varint num_examples | upload``."""
    return varint(num_examples) + upload


def read_upload(payload: bytes) -> tuple[int, bytes]:
    """Reverse ``write_upload``."""
    reader = Reader(payload)
    return reader.varint(), reader.rest()


def write_ask(since: int) -> bytes:
    """Return a request to catch up from round ``since``: ``varint since + 1``."""
    return varint(since + 1)


def read_ask(payload: bytes) -> int:
    """Reverse ``write_ask``."""
    reader = Reader(payload)
    since = reader.varint() - 1
    reader.end()
    return since
