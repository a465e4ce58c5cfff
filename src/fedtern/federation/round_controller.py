"""When rounds start and finish, as a state machine without I/O and without a clock.

A transport reports to a ``RoundController`` when clients come and go and passes their uploads to
it. It calls ``tick`` with the current time after each of these, and at ``next_tick`` if nothing
happens before. ``tick`` tells the transport when to announce a round.

Everything that affects the state of a round is in this module, so that one file has all the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from fedtern.core.errors import LocalProtocolError, RemoteProtocolError
from fedtern.core.protocol import Accepted, Broadcast, CohortNotice
from fedtern.federation.interfaces import RoundServer
from fedtern.federation.presence import Presence
from fedtern.federation.round_policy import RoundPolicy

NO_CLIENTS: frozenset[int] = frozenset()


class RoundState(Enum):
    """State of the open round. The values are descriptions."""

    DISCONNECTED = "The transport has not connected yet."
    DISCOVERING = (
        "Clients report that they are present. No cohort is selected in this grace period."
    )
    WAITING = "Too few clients are present to select a cohort."
    COLLECTING = "A cohort is selected. The server accepts its uploads."
    OVERDUE = "The quorum was missed and too few clients are present for another round."
    FINISHING = "The server aggregates and broadcasts. No caller ever sees this state."
    ENDED = "All rounds of the policy are finished."


class Event(Enum):
    """Reason for a transition. The values are descriptions."""

    CONNECTED = "The transport connected, for the first time or again. No cohort is selected."
    RESUMED = "The transport connected, for the first time or again. A cohort was selected before."
    TOO_FEW_CLIENTS = "The policy finds no cohort among the clients that are present."
    GRACE_PERIOD = "The policy finds no cohort, but the grace period is not over."
    COHORT_SELECTED = "Enough clients are present, and the policy selected a cohort."
    ROUND_SKIPPED = (
        "The open round has an empty cohort, and a cohort for the next round is present."
    )
    QUORUM_REACHED = "No more uploads are expected, or the deadline passed; a quorum has arrived."
    QUORUM_MISSED = "The round cannot reach its quorum, and there is no cohort for the next round."
    ROUND_VOID = "The round cannot reach its quorum, and there is a cohort for the next round."
    ALL_ROUNDS_FINISHED = "The server has finished all rounds of the policy or the privacy budget."


# Where the rules come from:
#
# - A round ends with exactly one broadcast, also if it counts no upload (docs/architecture.md, "The
#   round log"). So every way out of a round leads through FINISHING.
# - A broadcast names the cohort of the next round. If there is none at that moment, the cohort is
#   empty and the server refuses all uploads. When enough clients are present again, only another
#   broadcast can name them: the empty round is skipped (ROUND_SKIPPED).
# - A void round does not advance the model; its uploads return to the clients' residuals. So it is
#   finished only when another cohort can start at once (ROUND_VOID). Until then it stays open
#   (OVERDUE), and counts if the missing uploads arrive.
# - After a new connection, the transport does not know which clients are present. No cohort is
#   selected before the grace period is over; uploads of an earlier cohort are accepted.
# - A cohort survives a restart of the server (RESUMED), because clients are training for it. They
#   have the whole deadline again: their uploads may have been lost.
TRANSITIONS: Mapping[RoundState, Mapping[Event, RoundState]] = MappingProxyType(
    {
        RoundState.DISCONNECTED: {
            Event.CONNECTED: RoundState.DISCOVERING,
            Event.RESUMED: RoundState.COLLECTING,
            Event.ALL_ROUNDS_FINISHED: RoundState.ENDED,
        },
        RoundState.DISCOVERING: {
            Event.CONNECTED: RoundState.DISCOVERING,
            Event.TOO_FEW_CLIENTS: RoundState.WAITING,
            Event.COHORT_SELECTED: RoundState.COLLECTING,
            Event.ROUND_SKIPPED: RoundState.FINISHING,
        },
        RoundState.WAITING: {
            Event.CONNECTED: RoundState.DISCOVERING,
            Event.TOO_FEW_CLIENTS: RoundState.WAITING,
            Event.COHORT_SELECTED: RoundState.COLLECTING,
            Event.ROUND_SKIPPED: RoundState.FINISHING,
        },
        RoundState.COLLECTING: {
            Event.RESUMED: RoundState.COLLECTING,
            Event.QUORUM_REACHED: RoundState.FINISHING,
            Event.QUORUM_MISSED: RoundState.OVERDUE,
            Event.ROUND_VOID: RoundState.FINISHING,
        },
        RoundState.OVERDUE: {
            Event.RESUMED: RoundState.COLLECTING,
            Event.QUORUM_REACHED: RoundState.FINISHING,
            Event.QUORUM_MISSED: RoundState.OVERDUE,
            Event.ROUND_VOID: RoundState.FINISHING,
        },
        RoundState.FINISHING: {
            Event.COHORT_SELECTED: RoundState.COLLECTING,
            Event.GRACE_PERIOD: RoundState.DISCOVERING,
            Event.TOO_FEW_CLIENTS: RoundState.WAITING,
            Event.ALL_ROUNDS_FINISHED: RoundState.ENDED,
        },
        RoundState.ENDED: {
            Event.ALL_ROUNDS_FINISHED: RoundState.ENDED,
        },
    }
)


@dataclass(frozen=True)
class Transition:
    """One step of the state machine."""

    source: RoundState
    event: Event
    target: RoundState


@dataclass(frozen=True)
class RoundStarted:
    """A cohort was selected for a round that no broadcast announced: the first of a federation.

    Attributes:
        round: number of the round.
        cohort: clients that are expected to upload.

    """

    round: int
    cohort: frozenset[int]


@dataclass(frozen=True)
class RoundFinished:
    """A round was finished, and the next one started if ``next_cohort`` is not empty.

    Attributes:
        broadcast: message to all clients; it names the next cohort.
        cohort: clients that were expected to upload; empty for a skipped round.
        discarded: number of uploads that do not count because the round is void.
        void: whether the quorum was missed.
        seconds: time since the cohort was selected.
        next_cohort: clients that are expected to upload next.
        resting: clients that missed the deadline of this round, with the number of rounds for
            which they are not selected.

    """

    broadcast: Broadcast
    cohort: frozenset[int]
    discarded: int
    void: bool
    seconds: float
    next_cohort: frozenset[int]
    resting: Mapping[int, int]


Outcome = RoundStarted | RoundFinished


class RoundController:
    """Selects cohorts, watches deadlines and quorums, and finishes rounds.

    It keeps no clock: ``now`` is in seconds from any start and never decreases.

    Args:
        server: accepts the uploads and makes the broadcasts.
        policy: when a round starts and finishes.
        max_clients: number of clients whose presence is recorded.
        observer: called after each transition, for logs and tests.

    """

    def __init__(
        self,
        server: RoundServer,
        policy: RoundPolicy | None = None,
        *,
        max_clients: int = 100_000,
        observer: Callable[[Transition], None] | None = None,
    ) -> None:
        self.server = server
        self.policy = policy or RoundPolicy()
        self.presence = Presence(max_clients)
        self.cohort = NO_CLIENTS  # clients selected for the open round
        self._state = RoundState.DISCONNECTED
        self._observer = observer
        self._awaited: set[int] = set()  # clients of the cohort that have not uploaded
        self._selected_at = 0.0
        self._grace_end = 0.0
        self._resting: dict[int, int] = {}  # clients that rest because of the open round

    @property
    def state(self) -> RoundState:
        """State of the open round."""
        return self._state

    @property
    def ended(self) -> bool:
        """Whether all rounds of the policy, or of the privacy budget, are finished."""
        return self._state is RoundState.ENDED

    @property
    def all_clients_left(self) -> bool:
        """Whether the federation ended and every client that ever came has left since."""
        known = self.presence.known
        return self.ended and bool(known) and known <= self.presence.left

    @property
    def selected_at(self) -> float:
        """Time at which the deadline of the open round started to run."""
        return self._selected_at

    @property
    def next_tick(self) -> float | None:
        """Time at which to call ``tick`` if nothing happens before; None for never."""
        if self._state is RoundState.DISCOVERING:
            return self._grace_end
        if self._state is RoundState.COLLECTING and self.policy.deadline is not None:
            return self._selected_at + self.policy.deadline
        return None

    def admits(self, client: int) -> bool:
        """Whether the policy lets a client upload in the open round."""
        return self.policy.cohorts.open or client in self.cohort

    def expects(self, client: int) -> bool:
        """Whether a client should train in the open round."""
        return bool(self.cohort) and self.admits(client)

    def cohort_notice(self) -> bytes:
        """Return a message that names the open round and its cohort, for all clients."""
        cohort = self._as_announced(self.cohort)
        server = self.server
        return CohortNotice.seal(server.stamp, server.round, cohort, server.terms)

    def connected(self, now: float) -> None:
        """Report a connection, the first or another one.

        All earlier information about present clients is dropped. Announce the newest broadcast or
        ``cohort_notice`` after this: clients then send again what the last connection lost.
        """
        self.presence.reset()
        self._grace_end = now + self.policy.grace
        if self._all_rounds_finished:
            self._transition(Event.ALL_ROUNDS_FINISHED)
            return
        if not self.cohort:
            # A cohort that another process selected is still training.
            self.cohort = self.server.cohort or NO_CLIENTS
        self._awaited = set(self.cohort - self.server.uploaded)
        self._selected_at = now
        self._transition(Event.RESUMED if self.cohort else Event.CONNECTED)

    def client_present(self, client: int) -> None:
        """Report any message of a client that shows it is present."""
        self.presence.add(client)

    def client_left(self, client: int) -> None:
        """Report that a client said goodbye or lost its connection."""
        self.presence.remove(client)

    def receive(self, client: int, data: bytes, num_examples: int = 1) -> Accepted:
        """Pass an upload to the server.

        Returns:
            The event of the server.

        Raises:
            RemoteProtocolError: the client is not in the cohort, or the server refuses the upload.

        """
        # If the server has a cohort of its own, it refuses other clients itself.
        if self.server.cohort is None and not self.admits(client):
            raise RemoteProtocolError(
                f"client {client}: not in the cohort of round {self.server.round}"
            )
        accepted = self.server.receive(client, data, num_examples)
        self.client_answered(client)
        return accepted

    def client_answered(self, client: int) -> None:
        """Record that a client has sent all its messages of the open round."""
        self._awaited.discard(client)
        self.presence.upload_accepted(client)

    def excuse_cohort(self) -> None:
        """Stop waiting for uploads of the open round, and blame no client for its deadline."""
        self._awaited.clear()

    def extend_deadline(self, seconds: float) -> None:
        """Extend the deadline by a pause in which the transport did not read messages."""
        self._selected_at += seconds

    def tick(self, now: float, *, uploads_ended: bool = False) -> Outcome | None:
        """Start or finish a round if it is time to.

        Args:
            now: current time.
            uploads_ended: whether the open round can get no other upload, even before its deadline.

        Returns:
            The message to announce to all clients: ``cohort_notice`` for ``RoundStarted``, the
            broadcast for ``RoundFinished``, nothing for None.

        Raises:
            LocalProtocolError: ``connected`` was not called before.

        """
        state = self._state
        if state is RoundState.DISCONNECTED:
            raise LocalProtocolError("call connected() before tick()")
        if state is RoundState.ENDED or (state is RoundState.DISCOVERING and now < self._grace_end):
            return None
        if state is RoundState.DISCOVERING or state is RoundState.WAITING:
            return self._select_cohort(now)
        return self._finish_if_due(now, uploads_ended)

    def _select_cohort(self, now: float) -> Outcome | None:
        if self.presence.count >= self.policy.required_clients:
            if self.server.cohort is not None:
                if self._next_cohort():
                    return self._finish(Event.ROUND_SKIPPED, now)
            elif cohort := self.policy.choose(self.server.round, self.presence):
                self._start(cohort, now)
                self._transition(Event.COHORT_SELECTED)
                return RoundStarted(self.server.round, cohort)
        self._transition(Event.TOO_FEW_CLIENTS)
        return None

    def _finish_if_due(self, now: float, uploads_ended: bool) -> Outcome | None:
        is_due = uploads_ended or self._is_due(now)
        if self._state is RoundState.COLLECTING and not is_due:
            return None
        if self._has_quorum:
            return self._finish(Event.QUORUM_REACHED, now)
        self._stop_waiting()
        if self._next_cohort():
            return self._finish(Event.ROUND_VOID, now)
        self._transition(Event.QUORUM_MISSED)
        return None

    def _is_due(self, now: float) -> bool:
        """Whether nothing is gained by waiting longer for uploads."""
        deadline = self.policy.deadline
        if deadline is not None and now >= self._selected_at + deadline:
            return True
        if self._awaits_uploads():
            return False
        # A cohort of another policy, from before a restart, can be smaller than the quorum.
        too_small = not self.policy.cohorts.open and len(self.cohort) < self.policy.quorum
        # Without a quorum, clients that left may come back before the deadline.
        return too_small or self._has_quorum

    @property
    def _has_quorum(self) -> bool:
        return len(self.server.uploaded) >= self.policy.quorum

    @property
    def _all_rounds_finished(self) -> bool:
        rounds = self.policy.rounds
        return (rounds is not None and self.server.round >= rounds) or (
            not self.server.allows_round()
        )

    def _awaits_uploads(self) -> bool:
        # Called for every message, so it builds no sets.
        if self.policy.deadline is None or not self._awaited:
            return bool(self._awaited)
        return not self._awaited <= self.presence.left

    def _stop_waiting(self) -> None:
        self.presence.mark_unresponsive(self._awaited - self.presence.left)
        # A round without a quorum waits for clients that left, too. Clients that sent nothing since
        # the transport connected are excused: the connection may be at fault.
        presence = self.presence
        seen = presence.present if self._has_quorum else presence.present | presence.left
        for client in sorted(self._awaited & seen):
            rest = presence.deadline_missed(client, self.server.round, self.policy.rest)
            if rest:
                self._resting[client] = rest
        self._awaited.clear()

    def _as_announced(self, cohort: frozenset[int]) -> frozenset[int] | None:
        """Return the cohort as messages name it: None if every client may upload."""
        return None if self.policy.cohorts.open and cohort else cohort

    def _next_cohort(self) -> frozenset[int]:
        return self.policy.choose(self.server.round + 1, self.presence)

    def _finish(self, event: Event, now: float) -> RoundFinished:
        uploaded = self.server.uploaded
        void = event is Event.ROUND_VOID
        if void:
            for client in uploaded:
                self.server.discard(client)
        self._stop_waiting()
        last = self.policy.rounds is not None and self.server.round + 1 >= self.policy.rounds
        last = last or not self.server.allows_round(() if void else uploaded)
        next_cohort = NO_CLIENTS if last else self._next_cohort()
        broadcast = self.server.finish_round(self._as_announced(next_cohort))
        finished = RoundFinished(
            broadcast,
            self.cohort,
            len(uploaded) if void else 0,
            void,
            now - self._selected_at,
            next_cohort,
            self._resting,
        )
        self._start(next_cohort, now)
        self._transition(event)
        if self._all_rounds_finished:
            self._transition(Event.ALL_ROUNDS_FINISHED)
        elif next_cohort:
            self._transition(Event.COHORT_SELECTED)
        elif now < self._grace_end:
            self._transition(Event.GRACE_PERIOD)
        else:
            self._transition(Event.TOO_FEW_CLIENTS)
        return finished

    def _start(self, cohort: frozenset[int], now: float) -> None:
        self.cohort = cohort
        self._selected_at = now
        self._awaited = set(cohort - self.server.uploaded)
        self._resting = {}
        self.presence.left.clear()

    def _transition(self, event: Event) -> None:
        source = self._state
        if event not in TRANSITIONS[source]:
            raise LocalProtocolError(
                f"event {event.name} is not possible in state {source.name} of round"
                f" {self.server.round}; do not call finish_round of a controller's server"
            )
        self._state = TRANSITIONS[source][event]
        if self._observer is not None:
            self._observer(Transition(source, event, self._state))
