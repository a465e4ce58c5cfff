"""The graph of a round: which clients share masks, and how many shares recover a secret.

In a small cohort, every client is a neighbour of every other one (Bonawitz et al., 2017). In a
large one, each client has a number of neighbours that grows with the logarithm of the cohort (Bell
et al., 2020): clients are placed on a circle in a pseudorandom order, and each one is connected to
the nearest ones on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from fedtern.core.wire import u64

MIN_CLIENTS = 3
"""The smallest cohort. From a sum of two, each of them could compute the other's update."""

MAX_CLIENTS = 1 << 20


@dataclass(frozen=True)
class Graph:
    """The clients of a round and their neighbours.

    >>> graph = Graph.of([4, 7, 9, 12], b"round 1")
    >>> graph.neighbours(7), graph.threshold, graph.point(4)
    ((4, 9, 12), 3, 1)

    Attributes:
        clients: the ids of all clients, ascending.
        seed: makes the order on the circle.

    """

    clients: tuple[int, ...]
    seed: bytes

    @classmethod
    def of(cls, clients: Iterable[int], seed: bytes) -> Graph:
        """Make the graph of some clients.

        Raises:
            ValueError: there are fewer than three clients, or more than 2**20.

        """
        ids = tuple(sorted(clients))
        if not MIN_CLIENTS <= len(ids) <= MAX_CLIENTS:
            raise ValueError(
                f"a secure sum needs from {MIN_CLIENTS} to {MAX_CLIENTS} clients, got {len(ids)}"
            )
        return cls(ids, seed)

    @property
    def degree(self) -> int:
        """The number of neighbours of each client."""
        others = len(self.clients) - 1
        return min(others, 8 * others.bit_length())

    @property
    def is_complete(self) -> bool:
        """Whether every client is a neighbour of every other one."""
        return self.degree == len(self.clients) - 1

    @property
    def threshold(self) -> int:
        """The number of shares that recover a secret: always more than half of the neighbours.

        More than half, because a server that tells clients different things could otherwise get
        enough shares of both secrets of one client. In a complete graph it is more than two
        thirds. In others, the neighbours of one client can have more dropouts than the cohort has
        on average, so that the threshold must be lower.
        """
        return 2 * self.degree // 3 + 1 if self.is_complete else self.degree // 2 + 1

    def point(self, client: int) -> int:
        """Return the point of a client's shares: its place in the cohort, from 1 on."""
        return self._places[client] + 1

    def neighbours(self, client: int) -> tuple[int, ...]:
        """Return the neighbours of a client, ascending."""
        if self.is_complete:
            return tuple(other for other in self.clients if other != client)
        circle = self._circle
        at = self._places_on_circle[client]
        reach = self.degree // 2
        size = len(circle)
        near = [circle[(at + step) % size] for step in range(-reach, reach + 1) if step]
        return tuple(sorted(near))

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self.clients)}

    @cached_property
    def _circle(self) -> list[int]:
        """The clients in the order of a hash of the seed and their ids."""
        text = b"fedtern secure aggregation graph\0" + self.seed
        return sorted(self.clients, key=lambda c: (hashlib.sha256(text + u64(c)).digest(), c))

    @cached_property
    def _places_on_circle(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self._circle)}

    def sum_bits(self, levels: int) -> int:
        """Return the bits of a value: enough for the sum of all clients' levels, with its sign."""
        return (2 * levels * len(self.clients)).bit_length()
