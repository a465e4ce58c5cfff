"""What a server knows of the nodes it talks to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from logging import ERROR, WARNING

from flwr.common import log

from fedtern.flower.frames import Answer
from fedtern.flower.ledger import Ledger

MOST_CLIENTS = 1 << 32
"""Numbers from here on are a mistake, or meant to use them up."""


@dataclass
class Member:
    """A node's client: its number, and the round and history that its replica is at."""

    client: int
    round: int
    stamp: bytes

    def is_at(self, answer: Answer) -> None:
        """Believe what the client says of itself."""
        self.round, self.stamp = answer.round, answer.stamp


class Roster:
    """The nodes of a run that have introduced themselves, and those that were sent away."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._members: dict[int, Member] = {}
        self._clients: dict[int, int] = {}  # node -> client, also of those we have lost sight of
        self._refused: dict[int, str] = {}

    def strangers(self, nodes: Iterable[int]) -> list[int]:
        """Those of some nodes of which it is not known where they are."""
        return [n for n in nodes if n not in self._members and n not in self._refused]

    def get(self, node: int) -> Member | None:
        """A node's client, if it is known where it is."""
        return self._members.get(node)

    def node_of(self, client: int) -> int:
        """The node that a client is on."""
        return next(node for node, member in self._members.items() if member.client == client)

    def enter(self, node: int, answer: Answer) -> None:
        """Take a node in that has answered a hello."""
        before, client = self._clients.get(node), answer.client
        if client is None:
            client = self._ledger.number() if before is None else before
            if before is not None:
                log(WARNING, "fedtern: node %s (client %s) has lost its state", node, client)
        if client >= MOST_CLIENTS:
            self.refuse(node, f"it says that it is client {client}, of at most {MOST_CLIENTS}")
            return
        self._ledger.is_taken(client)
        self._clients[node] = client
        self._members[node] = Member(client, answer.round, answer.stamp)

    def refuse(self, node: int, reason: str) -> None:
        """Send a node away for the rest of the run."""
        log(ERROR, "fedtern: node %s takes no part: %s", node, reason)
        self._members.pop(node, None)
        self._refused[node] = reason

    def lose(self, node: int) -> None:
        """Ask a node anew, when its turn comes, where it is."""
        self._members.pop(node, None)

    def name(self, node: int) -> str:
        """How a person would call a node."""
        client = self._clients.get(node)
        return f"node {node}" if client is None else f"node {node} (client {client})"
