"""Who is there, as far as a server can tell."""

from __future__ import annotations


class Presence:
    """Clients that have been heard of.

    Somebody who was called and did not answer is silent, and not called again before there is a
    sign of life: a broker may go on believing in a client for minutes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.here: set[int] = set()
        self.known: set[int] = set()  # who ever was
        self.left: set[int] = set()  # since the last call
        self.silent: set[int] = set()

    def forget(self) -> None:
        """Know nothing, as after a new connection: the broker will tell."""
        self.here, self.left, self.silent = set(), set(), set()

    def heard(self, client: int) -> None:
        """A sign of life."""
        if client in self.here or len(self.here) < self.most:
            self.here.add(client)
        if len(self.known) < self.most:
            self.known.add(client)
        self.left.discard(client)
        self.silent.discard(client)

    def leave(self, client: int) -> None:
        """A farewell, or a last will."""
        if client in self.here:
            self.left.add(client)
        self.here.discard(client)
        self.silent.discard(client)

    def unanswered(self, clients: set[int]) -> None:
        """These were called and did not answer in time."""
        self.silent |= clients & self.here

    @property
    def count(self) -> int:
        """How many may be called."""
        return len(self.here) - len(self.silent)  # asked with every message, so not by making sets

    @property
    def available(self) -> list[int]:
        """Who may be called, ascending."""
        return sorted(self.here - self.silent)
