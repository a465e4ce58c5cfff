"""Rounds with secure aggregation on the server: their phases, their deadlines and the sum.

Nothing here has a network or a clock: a transport passes messages and the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fedtern.core.errors import (
    DuplicateUpload,
    LateUpload,
    LocalProtocolError,
    RemoteProtocolError,
)
from fedtern.core.protocol import Accepted, Broadcast, Terms
from fedtern.federation.interfaces import ServerLike
from fedtern.federation.round_policy import RoundPolicy
from fedtern.privacy.secure import (
    FIRST_QUANTUM,
    MIN_CLIENTS,
    Context,
    SecureServer,
    SecureSum,
    ServerState,
    check_secure_terms,
    next_quantum,
)

# When each phase ends at the latest, as a share of the round's deadline. Clients train in the first
# phase; the others only exchange messages.
_PHASE_ENDS = {
    ServerState.ADVERTISING: 1 / 2,
    ServerState.SHARING: 2 / 3,
    ServerState.COLLECTING: 5 / 6,
    ServerState.UNMASKING: 1.0,
}


class SecureRounds:
    """The secure rounds of a server, as a ``RoundController`` sees them.

    It takes the place of the server there: ``uploaded`` are the clients in the sum, once the server
    knows it. The phases of a round and the retries of their messages are in here.

    The state of an open round is not stored. After a restart, the cohort of that round is empty, so
    that the controller skips the round, and its updates return to the clients' residuals. Only the
    very first round is opened again: nothing tells whether it was open before.

    Args:
        server: applies the sums and makes the broadcasts.
        quantum: the distance of two levels in the next round; after a restart, that of before.

    Attributes:
        server: the server.
        quantum: the distance of two levels in the next round.
        reason: why the last round was abandoned; empty if it was not.
        absent: clients of the open round that left a message unanswered.

    Raises:
        ValueError: the method has no secure aggregation, or the model has carried tensors.

    """

    def __init__(self, server: ServerLike, quantum: float = FIRST_QUANTUM) -> None:
        check_secure_terms(server.terms)
        self.server = server
        self.quantum = quantum
        self.reason = ""
        self.absent: set[int] = set()
        # The round that an earlier process opened.
        self._skipped_round = server.round if server.round > 0 else -1
        self._secure: SecureServer | None = None  # of the open round
        self._messages: dict[int, bytes] = {}  # of the open phase, by client

    @property
    def terms(self) -> Terms:
        """Model and method of the federation."""
        return self.server.terms

    @property
    def round(self) -> int:
        """Number of finished rounds."""
        return self.server.round

    @property
    def stamp(self) -> bytes:
        """Stamp of the history so far."""
        return self.server.stamp

    @property
    def cohort(self) -> frozenset[int] | None:
        """Clients that may take part in the open round; None for all clients."""
        return frozenset() if self.round == self._skipped_round else self.server.cohort

    @property
    def uploaded(self) -> frozenset[int]:
        """Clients in the sum of the open round; none before the sum is known."""
        result = self._result
        return frozenset() if result is None else result.counted

    @property
    def _result(self) -> SecureSum | None:
        return None if self._secure is None else self._secure.result

    @property
    def state(self) -> ServerState | None:
        """State of the open secure round; None if none is open."""
        return None if self._secure is None else self._secure.state

    @property
    def is_over(self) -> bool:
        """Whether the open round has its sum, or cannot get one any more."""
        secure = self._secure
        return secure is None or secure.state in (ServerState.FINISHED, ServerState.ABANDONED)

    def allows_round(self, counted: Iterable[int] = ()) -> bool:
        """Whether the privacy budget allows another round."""
        return self.server.allows_round(counted)

    def start(self, cohort: Iterable[int]) -> dict[int, bytes]:
        """Open the next secure round; return the invitation of each client."""
        context = Context(self.terms, self.stamp, self.round)
        self._secure = SecureServer(context, cohort, self.quantum)
        self.absent = set()
        self.reason = ""
        self._messages = self._secure.invitations()
        return dict(self._messages)

    def receive(self, client_id: int, data: bytes, num_examples: float = 1) -> Accepted:
        """Refuse a plain upload, which would show the server the update of one client.

        Raises:
            RemoteProtocolError: always.

        """
        raise RemoteProtocolError(
            f"client {client_id} sent a plain upload; this method takes only masked ones"
        )

    def receive_message(self, client_id: int, data: bytes) -> None:
        """Accept a client's message of the open phase, or raise and change nothing.

        Raises:
            DecodeError: the bytes are malformed.
            DuplicateUpload: the client repeats its message of this phase.
            LateUpload: no secure round is open, or the message is of an earlier phase.
            RemoteProtocolError: the client is not expected to send this message now.

        """
        if self._secure is None or self.is_over:
            raise LateUpload(f"client {client_id}: no secure round is open")
        is_awaited = client_id in self._secure.awaited
        self._secure.receive(client_id, data)
        if not is_awaited:
            raise DuplicateUpload(f"client {client_id} repeats its message of this phase")

    def unanswered(self, client_id: int) -> bytes | None:
        """Return the message that a client has not answered in this phase, to be sent again."""
        if self._secure is None or client_id not in self._secure.awaited:
            return None
        return self._messages[client_id]

    def all_unanswered(self) -> dict[int, bytes]:
        """Return all messages that were not answered in this phase, by client."""
        awaited = () if self._secure is None else sorted(self._secure.awaited)
        return {client: self._messages[client] for client in awaited}

    def phase_end(self, start: float, deadline: float | None) -> float | None:
        """Return the time at which the open phase ends at the latest; None for no end.

        Args:
            start: time at which the round started.
            deadline: seconds that the round may take.

        """
        if deadline is None or self._secure is None or self.is_over:
            return None
        return start + deadline * _PHASE_ENDS[self._secure.state]

    def is_ready(self, left: Collection[int], *, time_is_up: bool) -> bool:
        """Whether to end the open phase: all clients have answered or left, or the time is up."""
        if self._secure is None or self.is_over:
            return False
        return time_is_up or all(client in left for client in self._secure.awaited)

    def advance(self) -> dict[int, bytes]:
        """End the open phase; return the messages of the next one by client.

        Raises:
            LocalProtocolError: no phase is open.

        """
        if self._secure is None:
            raise LocalProtocolError(f"no secure round is open in round {self.round}")
        self.absent |= self._secure.awaited
        self._messages = self._secure.advance()
        self.reason = self._secure.reason
        return dict(self._messages)

    def discard(self, client_id: int) -> None:
        """Drop the sum of the open round: one client cannot be taken out of it."""
        self._secure = None

    def finish_round(self, next_cohort: Iterable[int] | None = None) -> Broadcast:
        """Apply the sum of the open round, if there is one, and return the broadcast.

        Raises:
            LocalProtocolError: the secure round is not over.

        """
        if not self.is_over:
            raise LocalProtocolError(f"secure round {self.round} is not over")
        result = self._result
        broadcast = finish_with_sum(self.server, result, next_cohort)
        if result is not None:
            self.quantum = next_quantum(self.quantum, result.clipped)
        self._secure = None
        self._messages = {}
        return broadcast


def check_secure_policy(policy: RoundPolicy | None) -> RoundPolicy:
    """Return the policy of secure rounds; without one, a policy with the smallest quorum.

    Raises:
        ValueError: the quorum is smaller, or the policy has no deadline.

    """
    if policy is None:
        return RoundPolicy(quorum=MIN_CLIENTS)
    if policy.quorum < MIN_CLIENTS:
        raise ValueError(
            f"secure aggregation needs a quorum of at least {MIN_CLIENTS}, got {policy.quorum}: the"
            " sum of fewer clients would show the update of one of them to another"
        )
    if policy.deadline is None:
        raise ValueError(
            "secure aggregation needs a deadline (no --exact): a client that restarts cannot"
            " continue its round, and without a deadline the server would wait for it forever"
        )
    return policy


def finish_with_sum(
    server: ServerLike, result: SecureSum | None, next_cohort: Iterable[int] | None = None
) -> Broadcast:
    """Finish a round with a secure sum; without one, all updates return to the residuals."""
    if result is None:
        return server.finish_round(next_cohort, counted=())
    delta = result.mean(server.terms.layout.size)
    return server.finish_round(next_cohort, delta=delta, counted=result.counted)
