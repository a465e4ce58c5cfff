"""Which clients are present, as far as a server can tell."""

from __future__ import annotations


class Presence:
    """Clients that are present, that left, and that do not answer.

    A client that was selected and did not upload in time is unresponsive. It is not selected again
    before it sends another message: a broker can report a lost client as present for minutes.

    Args:
        max_clients: number of clients that are recorded; others are ignored.

    """

    def __init__(self, max_clients: int) -> None:
        self.max_clients = max_clients
        self.present: set[int] = set()
        self.known: set[int] = set()  # clients that were ever present
        self.left: set[int] = set()  # clients that left since the open round started
        self.unresponsive: set[int] = set()

    def reset(self) -> None:
        """Drop everything but the known clients, as after a new connection."""
        self.present = set()
        self.left = set()
        self.unresponsive = set()

    def add(self, client: int) -> None:
        """Record a message of a client."""
        if client in self.present or len(self.present) < self.max_clients:
            self.present.add(client)
        if len(self.known) < self.max_clients:
            self.known.add(client)
        self.left.discard(client)
        self.unresponsive.discard(client)

    def remove(self, client: int) -> None:
        """Record that a client left or lost its connection."""
        if client in self.present:
            self.left.add(client)
        self.present.discard(client)
        self.unresponsive.discard(client)

    def mark_unresponsive(self, clients: set[int]) -> None:
        """Record that these clients were selected and did not upload in time."""
        self.unresponsive |= clients & self.present

    @property
    def count(self) -> int:
        """Number of clients that can be selected."""
        # Called for every message, so it builds no sets.
        return len(self.present) - len(self.unresponsive)

    @property
    def available(self) -> list[int]:
        """Clients that can be selected, in ascending order."""
        return sorted(self.present - self.unresponsive)
