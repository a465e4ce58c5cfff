"""A server's record of its nodes and their clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from logging import ERROR, WARNING

from flwr.common import log

from fedtern.transports.flower.client_state import SHARED_DIRECTORY
from fedtern.transports.flower.messages import Answer
from fedtern.transports.flower.run_totals import RunTotals

# A larger number is an error, or an attempt to use up all numbers.
MAX_CLIENTS = 1 << 32


@dataclass
class Member:
    """The client of a node, and the position of its replica.

    Attributes:
        client: Number of the client.
        round: Round of its replica; -1 if it has no weights of this history.
        stamp: Stamp of the history that it has followed.
        renumbered: Whether the node reported another number and has not been told this one yet.

    """

    client: int
    round: int
    stamp: bytes
    renumbered: bool = False

    def moved_to(self, round: int, stamp: bytes) -> None:
        """Record a position that the client has reported, or was brought to."""
        self.round = round
        self.stamp = stamp
        self.renumbered = False


class NodeTable:
    """The nodes of a run: those with a known position, and those that are excluded.

    Args:
        totals: Assigns client numbers.

    """

    def __init__(self, totals: RunTotals) -> None:
        self._totals = totals
        self._members: dict[int, Member] = {}  # nodes whose position is known
        self._clients: dict[int, int] = {}  # client number of each node, also after forget()
        self._marks: dict[bytes, int] = {}  # client number of each state, by its mark
        self._excluded: dict[int, str] = {}  # reason for each excluded node

    @property
    def members(self) -> list[Member]:
        """The clients whose position is known."""
        return list(self._members.values())

    def unknown(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes whose position is not known and that are not excluded."""
        return [n for n in nodes if n not in self._members and n not in self._excluded]

    def exclusions(self, nodes: Iterable[int]) -> list[str]:
        """Return the reason for each of the nodes that is excluded."""
        return [self._excluded[node] for node in nodes if node in self._excluded]

    def get(self, node: int) -> Member | None:
        """Return the client of a node; None if its position is not known."""
        return self._members.get(node)

    def node_of(self, client: int) -> int:
        """Return the node of a client."""
        return next(node for node, member in self._members.items() if member.client == client)

    def reserve_numbers(self, answers: Iterable[Answer | None]) -> None:
        """Do not assign the numbers in these answers to new clients."""
        for answer in answers:
            if answer is not None and answer.client is not None and answer.client < MAX_CLIENTS:
                self._totals.reserve_client_number(answer.client)

    def add(self, node: int, answer: Answer) -> None:
        """Record the client and the position that a node has reported."""
        reported = answer.client
        if reported is not None and reported >= MAX_CLIENTS:
            self.exclude(
                node, f"it reports client number {reported}, which must be below {MAX_CLIENTS}"
            )
            return
        client = self._choose_number(node, reported, answer.data)
        self._clients[node] = client
        if answer.data:
            self._marks[answer.data] = client
        if reported in (None, client):
            self._members[node] = Member(client, answer.round, answer.stamp)
        else:  # the node's state is that of another client
            self._members[node] = Member(client, -1, answer.stamp, renumbered=True)

    def _choose_number(self, node: int, reported: int | None, mark: bytes) -> int:
        """Return the number of a node's client: by its state rather than by its own report."""
        others = {client: other for other, client in self._clients.items() if other != node}
        if (client := self._marks.get(mark)) is not None:
            if client in others and node not in self._clients:
                log(
                    WARNING,
                    "fedtern: node %s has the state of node %s (client %s): if both run, %s",
                    node,
                    others[client],
                    client,
                    SHARED_DIRECTORY,
                )
            return client
        if reported is not None and (reported not in others or not mark):
            self._totals.reserve_client_number(reported)
            return reported
        before = self._clients.get(node)
        if reported is None and before is not None and before not in others:
            log(WARNING, "fedtern: node %s (client %s) has lost its state", node, before)
            return before
        client = self._totals.new_client_number()
        if reported is not None:
            log(
                WARNING,
                "fedtern: node %s reports that it is client %s, which is now node %s: it becomes"
                " client %s, receives the whole model and continues with an empty residual",
                node,
                reported,
                others[reported],
                client,
            )
        return client

    def exclude(self, node: int, reason: str) -> None:
        """Exclude a node for the rest of the run."""
        log(ERROR, "fedtern: node %s is excluded from this run: %s", node, reason)
        self._members.pop(node, None)
        self._excluded[node] = reason

    def forget(self, node: int) -> None:
        """Forget the position of a node; it is asked again before its next round."""
        self._members.pop(node, None)

    def describe(self, node: int) -> str:
        """Return the node's id and client number, for log lines."""
        client = self._clients.get(node)
        return f"node {node}" if client is None else f"node {node} (client {client})"
