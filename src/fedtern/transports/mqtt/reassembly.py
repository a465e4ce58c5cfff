"""A catch-up that comes in parts."""

from __future__ import annotations

from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout
from fedtern.transports.mqtt.topics import Chunk


class Reassembly:
    """Parts, until there are all of them; never more than a catch-up of the model can take."""

    def __init__(self, layout: Layout) -> None:
        # None is longer than the model itself, which may come with a sum of signs.
        self.longest = 2 * (4 * layout.size + 8 * len(layout.names)) + 4096
        self.size = 0  # bytes so far
        self.furthest = 0  # the most parts that there have been since the question
        self._parts: list[bytes] = []

    def clear(self) -> None:
        """Begin anew."""
        self._parts, self.size = [], 0

    def asked(self) -> None:
        """There is a new question."""
        self.clear()
        self.furthest = 0

    def add(self, parcel: Chunk) -> bool:
        """Put a part to the others; whether that comes nearer to an answer than ever before."""
        if parcel.number != len(self._parts):
            self.clear()  # of another answer, or one that has lost a part
            if parcel.number:
                return False
        # Without an end to empty ones there could be any number of them.
        if not parcel.part or self.size + len(parcel.part) > self.longest:
            self.clear()
            raise DecodeError(
                f"part {parcel.number} of {parcel.of} is of no catch-up of this model"
            )
        self._parts.append(parcel.part)
        self.size += len(parcel.part)
        nearer = len(self._parts) > self.furthest
        self.furthest = max(self.furthest, len(self._parts))
        return nearer

    def take(self, count: int) -> bytes | None:
        """All of it, if these are so many parts."""
        if len(self._parts) != count:
            return None
        data = b"".join(self._parts)
        self.clear()
        return data
