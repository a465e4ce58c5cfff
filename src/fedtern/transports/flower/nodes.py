"""What a server knows of the nodes it talks to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from logging import ERROR, WARNING

from flwr.common import log

from fedtern.transports.flower.client_state import SHARED
from fedtern.transports.flower.messages import Answer
from fedtern.transports.flower.run_totals import RunTotals

MOST_CLIENTS = 1 << 32
"""Numbers from here on are a mistake, or meant to use them up."""


@dataclass
class Member:
    """A node's client: its number, and the round and history that its replica is at."""

    client: int
    round: int
    stamp: bytes
    renamed: bool = False  # whether it has yet to hear its number, and forget the one it said

    def is_at(self, round: int, stamp: bytes) -> None:
        """Note where it has been seen."""
        self.round, self.stamp, self.renamed = round, stamp, False


class NodeTable:
    """The nodes of a run that have introduced themselves, and those that were sent away."""

    def __init__(self, ledger: RunTotals) -> None:
        self._ledger = ledger
        self._members: dict[int, Member] = {}
        self._clients: dict[int, int] = {}  # node -> client, also of those we have lost sight of
        self._marks: dict[bytes, int] = {}  # of a state -> client
        self._refused: dict[int, str] = {}

    def strangers(self, nodes: Iterable[int]) -> list[int]:
        """Those of some nodes of which it is not known where they are."""
        return [n for n in nodes if n not in self._members and n not in self._refused]

    def refusals(self, nodes: Iterable[int]) -> list[str]:
        """Why some of the nodes have been sent away."""
        return [self._refused[node] for node in nodes if node in self._refused]

    def get(self, node: int) -> Member | None:
        """A node's client, if it is known where it is."""
        return self._members.get(node)

    def node_of(self, client: int) -> int:
        """The node that a client is on."""
        return next(node for node, member in self._members.items() if member.client == client)

    def expect(self, answers: Iterable[Answer | None]) -> None:
        """Give none of the numbers to a new client that some nodes are about to enter with."""
        for answer in answers:
            if answer is not None and answer.client is not None and answer.client < MOST_CLIENTS:
                self._ledger.reserve_client_number(answer.client)

    def enter(self, node: int, answer: Answer) -> None:
        """Take a node in that has said where it is."""
        said = answer.client
        if said is not None and said >= MOST_CLIENTS:
            self.refuse(node, f"it says that it is client {said}, of at most {MOST_CLIENTS}")
            return
        client = self._number(node, said, answer.data)
        self._clients[node] = client
        if answer.data:
            self._marks[answer.data] = client
        self._members[node] = Member(client, answer.round, answer.stamp)
        if said not in (None, client):  # what it has is another client's
            self._members[node] = Member(client, -1, answer.stamp, renamed=True)

    def _number(self, node: int, said: int | None, mark: bytes) -> int:
        """Which client a node is, by its state rather than by what it says."""
        others = {client: other for other, client in self._clients.items() if other != node}
        if (client := self._marks.get(mark)) is not None:
            if client in others and node not in self._clients:
                log(WARNING, "fedtern: node %s has the state of node %s (client %s): if both are"
                    " running, %s", node, others[client], client, SHARED)  # fmt: skip
            return client
        if said is not None and (said not in others or not mark):
            self._ledger.reserve_client_number(said)
            return said
        before = self._clients.get(node)
        if said is None and before is not None and before not in others:
            log(WARNING, "fedtern: node %s (client %s) has lost its state", node, before)
            return before
        client = self._ledger.new_client_number()
        if said is not None:
            log(WARNING, "fedtern: node %s says that it is client %s, which node %s is by now: it"
                " becomes client %s, is sent the whole model and goes on with an empty residual",
                node, said, others[said], client)  # fmt: skip
        return client

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
