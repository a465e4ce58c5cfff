"""A server's side of the conversation, without the network and without a clock.

Whatever happens is told to a ``Coordinator`` with the time it happens at; what it returns is to be
published. ``serve`` is the loop around it.
"""

from __future__ import annotations

import logging

from fedtern.core.errors import DecodeError, RemoteProtocolError
from fedtern.federation.interfaces import ServerLike
from fedtern.federation.round_controller import (
    RoundController,
    RoundStarted,
    RoundState,
    Transition,
)
from fedtern.federation.round_policy import RoundPolicy
from fedtern.transports.mqtt.limits import Allowance, Limits
from fedtern.transports.mqtt.stats import Stats, reason_of
from fedtern.transports.mqtt.topics import (
    ALIVE,
    ASK,
    UP,
    Announcement,
    Publish,
    Topics,
    chunks_of,
    read_ask,
    read_upload,
)

log = logging.getLogger("fedtern.mqtt")


class Coordinator:
    """Reads clients' messages, answers them, and announces rounds."""

    def __init__(
        self,
        server: ServerLike,
        plan: RoundPolicy | None = None,
        limits: Limits | None = None,
        stats: Stats | None = None,
    ) -> None:
        self.server = server
        self.terms = server.terms
        self.limits = limits or Limits()
        self.stats = stats or Stats()
        self.topics = Topics(server.federation)
        self.rounds = RoundController(
            server, plan, max_clients=self.limits.clients, observer=self._log_transition
        )
        self._allowance = Allowance(self.limits)
        self._payload = self.limits.longest_payload(None)

    def connected(self, now: float, longest: int | None = None) -> list[Publish]:
        """Announce the open round on a new connection, the first or another one.

        ``longest`` is the longest packet that the broker accepts, in bytes, if it states one.
        Uploads may have been lost with the last connection: clients that read the announcement send
        theirs again.
        """
        self.stats.connections += 1
        self._payload = self.limits.longest_payload(longest)
        self.rounds.connected(now)
        # Even if no cohort is called: the topic may retain the last announcement of an earlier
        # federation of the same name.
        return [self._announce(self.server.newest_broadcast(self.server.round - 1))]

    def heard(self, kind: str, client: int, payload: bytes, now: float) -> list[Publish]:
        """Handle a message that a client published on one of its own topics."""
        self.stats.up_bytes += len(payload)
        answers: list[Publish] = []
        longest = self.limits.longest_upload(self.terms.layout) if kind == UP else 16
        if len(payload) > longest:
            self.stats.refuse(
                "size", client, f"{len(payload)} bytes under {kind}/, {longest} allowed"
            )
        elif kind == ALIVE:
            # Never limited by rate: a client that is not known to be present is never called.
            if payload:
                self.rounds.client_present(client)
            else:
                self.rounds.client_left(client)
        elif not self._allowance.spend(client, now):
            self.stats.refuse("rate", client, f"more than {self.limits.burst} messages at once")
        elif kind == UP:
            self._upload(client, payload)
        elif kind == ASK:
            answers = self._catch_up(client, payload)
        self.stats.present = len(self.rounds.presence.here)
        return answers + self.tick(now)

    def _upload(self, client: int, payload: bytes) -> None:
        barred = not self.rounds.admits(client)
        try:
            with self.stats.phase("decode"):
                examples, data = read_upload(payload)
                self.rounds.receive(client, data, examples)
        except (DecodeError, RemoteProtocolError) as error:
            reason = reason_of(error, barred)
            self.stats.refuse(reason, client, error)
            if reason not in ("garbage", "foreign"):
                self.rounds.client_present(client)
        else:
            self._allowance.refund(client)

    def _catch_up(self, client: int, payload: bytes) -> list[Publish]:
        try:
            with self.stats.phase("catch-up"):
                data = self.server.catch_up(client, read_ask(payload)).data
        except (DecodeError, RemoteProtocolError) as error:
            garbage = isinstance(error, DecodeError)
            self.stats.refuse("garbage" if garbage else "foreign", client, error)
            return []
        self.rounds.client_present(client)
        self.stats.catch_ups += 1
        topic = self.topics.of("down", client)
        called = self.rounds.expects(client)
        chunks = chunks_of(data, self._payload, called=called, ended=self.rounds.ended)
        answers = [Publish(topic, chunk.write()) for chunk in chunks]
        self.stats.catch_up_bytes += sum(len(answer.payload) for answer in answers)
        return answers

    def tick(self, now: float) -> list[Publish]:
        """Start or finish a round if it is time to."""
        # The controller has no clock. Most calls only find that there is nothing to do.
        with self.stats.phase("aggregate"):
            outcome = self.rounds.tick(now)
        if outcome is None:
            return []
        if isinstance(outcome, RoundStarted):
            self._count_cohort(outcome.cohort)
            return [self._announce(None)]
        if outcome.void:
            self.stats.void += 1
            uploads = outcome.discarded
            called = len(outcome.cohort)
            log.warning(
                "round %s: void, %s of %s uploads", outcome.broadcast.round, uploads, called
            )
        self._allowance.round_ended()
        self.stats.ended(outcome.broadcast, outcome.cohort, outcome.seconds)
        self._count_cohort(outcome.next_cohort)
        return [self._announce(outcome.broadcast.data)]

    def _count_cohort(self, cohort: frozenset[int]) -> None:
        self.stats.cohort = len(cohort)
        log.debug("round %s: called %s of %s", self.server.round, len(cohort), self.stats.present)

    def _log_transition(self, transition: Transition) -> None:
        waits = transition.target is RoundState.WAITING
        if waits and transition.source is not RoundState.WAITING:
            log.info(
                "round %s: waiting for clients: %s present, least %s, quorum %s",
                self.server.round,
                self.rounds.presence.count,
                self.rounds.policy.needed,
                self.rounds.policy.quorum,
            )

    def _announce(self, message: bytes | None) -> Publish:
        if message is None or len(message) > self._payload:
            message = self.rounds.cohort_notice()
        deadline = self.rounds.policy.deadline
        payload = Announcement(message, deadline, self.rounds.ended).write()
        self.stats.announced_bytes += len(payload)
        return Publish(self.topics.round, payload, qos=1, retain=True)
