"""The server's side of the MQTT protocol, without a network and without a clock.

``MqttServer`` is told what clients publish, with the time, and returns messages to publish.
``serve`` is the loop around it. The rounds are those of a ``RoundController``; this module adds
topics, limits, chunks and statistics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedtern.core.errors import DecodeError, RemoteProtocolError
from fedtern.federation.interfaces import ServerLike
from fedtern.federation.round_controller import (
    RoundController,
    RoundStarted,
    RoundState,
    Transition,
)
from fedtern.federation.round_policy import RoundPolicy, check_quorum
from fedtern.federation.secure_rounds import SecureRounds, check_secure_policy
from fedtern.privacy.secure import FIRST_QUANTUM, shared_positions_of
from fedtern.transports.mqtt.admission import Admission
from fedtern.transports.mqtt.limits import Limits
from fedtern.transports.mqtt.messages import Announcement, read_ask, read_upload
from fedtern.transports.mqtt.reassembly import split
from fedtern.transports.mqtt.stats import Stats, refusal_reason
from fedtern.transports.mqtt.topics import ALIVE, ASK, DOWN, SECURE, UP, Publish, Topics

log = logging.getLogger("fedtern.mqtt")

# Room for the largest message of a secure round in addition to its masked values: the shares for
# the neighbours in a graph of 2**20 clients.
_SECURE_BYTES = 16 << 10


class MqttServer:
    """Reads clients' messages, answers them, and announces rounds.

    With a method of secure aggregation, it runs secure rounds, and refuses plain uploads.

    Args:
        server: accepts uploads and makes broadcasts. Its ``federation`` names the topics.
        policy: when rounds start and finish. Secure rounds need a quorum of at least three.
        limits: sizes and rates of messages.
        stats: counters to add to.
        quantum: for secure rounds only: ``secure.quantum`` of an earlier process.

    Attributes:
        secure: the secure rounds; None with other methods.

    Raises:
        ValueError: the method has secure aggregation, and the quorum is too small or the model has
            carried tensors.

    """

    def __init__(
        self,
        server: ServerLike,
        policy: RoundPolicy | None = None,
        limits: Limits | None = None,
        stats: Stats | None = None,
        quantum: float = FIRST_QUANTUM,
    ) -> None:
        self.server = server
        self.limits = limits or Limits()
        self.stats = stats or Stats()
        self.topics = Topics(server.federation)
        self.secure: SecureRounds | None = None
        if shared_positions_of(server.terms.method) is not None:
            self.secure = SecureRounds(server, quantum)
            policy = check_secure_policy(policy)
            largest = self.limits.max_upload_bytes(server.terms.layout) + _SECURE_BYTES
            self.limits = replace(self.limits, upload_bytes=largest)
        self.rounds = RoundController(
            self.secure or server,
            check_quorum(server.terms.method.aggregate, policy),
            max_clients=self.limits.clients,
            observer=self._log_transition,
        )
        self.admission = Admission(self.limits, server.terms.layout, self.stats)
        self.last_counted: frozenset[int] = frozenset()  # clients of the last broadcast
        self._max_payload = self.limits.max_payload_bytes(None)

    def connected(self, now: float, broker_limit: int | None = None) -> list[Publish]:
        """Announce the open round on a new connection, the first or another one.

        Uploads may have been lost with the last connection: clients that read the announcement send
        theirs again.

        Args:
            now: current time.
            broker_limit: largest packet that the broker accepts, in bytes, if it states one.

        """
        self.stats.connections += 1
        self._max_payload = self.limits.max_payload_bytes(broker_limit)
        self.rounds.connected(now)
        # Even if no cohort is selected: the topic may retain the last announcement of an earlier
        # federation of the same name.
        messages = [self._announce(self.server.newest_broadcast(self.server.round - 1))]
        if self.secure is not None:
            messages += self._send_secure(self.secure.all_unanswered())
            if self.secure.is_over:
                self.rounds.excuse_cohort()  # nobody can upload in this round any more
        return messages

    @property
    def next_tick(self) -> float | None:
        """Time at which to call ``tick`` if nothing happens before; None for never."""
        ticks = (self.rounds.next_tick, self._secure_phase_end, self.admission.next_unmute)
        return min((time for time in ticks if time is not None), default=None)

    @property
    def awaited(self) -> list[int]:
        """Clients that the open round waits for, in ascending order."""
        if self.secure is not None:
            return list(self.secure.all_unanswered())
        return sorted(self.rounds.cohort - self.server.uploaded)

    def filters(self) -> tuple[str, ...]:
        """Return the topic filters to subscribe to.

        They are three wildcards, unless a client floods. Then they name the topics of the other
        known clients, so that the broker drops the flood. Clients that are not known yet are
        received when the time of the mute is over: their presence is retained.
        """
        muted = self.admission.muted
        clients: Sequence[int | str] = ["+"]
        if muted:
            known = self.rounds.presence.known | self.rounds.presence.present
            clients = sorted(known - muted.keys())
        return tuple(self.topics.of(kind, c) for c in clients for kind in (UP, ASK, ALIVE))

    def admit(self, topic: str, size: int, now: float) -> bool:
        """Decide whether to queue a message, before anything else is done with it.

        Args:
            topic: topic of the message.
            size: length of the payload in bytes.
            now: current time.

        Returns:
            Whether to queue the message and to pass it to ``handle`` later.

        """
        parsed = self.topics.parse(topic)
        if parsed is None:
            return False
        kind, client = parsed
        return self.admission.admit(kind, client, size, now)

    def receive(self, kind: str, client: int, payload: bytes, now: float) -> list[Publish]:
        """Handle a message at once, without a queue, and return messages to publish."""
        if not self.admission.admit(kind, client, len(payload), now):
            return self.tick(now)
        return self.handle(kind, client, payload, now)

    def handle(self, kind: str, client: int, payload: bytes, now: float) -> list[Publish]:
        """Handle an admitted message, and return messages to publish."""
        self.admission.release(client, len(payload))
        answers: list[Publish] = []
        if kind == ALIVE:
            if payload:
                self.rounds.client_present(client)
                answers = self._repeat_secure(client)
            else:
                self.rounds.client_left(client)
        elif kind == UP:
            self._receive_upload(client, payload, now)
        elif kind == ASK:
            answers = self._catch_up(client, payload, now)
        self.stats.present = len(self.rounds.presence.present)
        return answers + self.tick(now)

    def _receive_upload(self, client: int, payload: bytes, now: float) -> None:
        in_cohort = self.rounds.admits(client)
        try:
            with self.stats.phase("decode"):
                num_examples, data = read_upload(payload)
                if self.secure is not None:
                    self.secure.receive_message(client, data)
                    self.rounds.client_present(client)
                else:
                    self.rounds.receive(client, data, num_examples)
        except (DecodeError, RemoteProtocolError) as error:
            reason = refusal_reason(error, in_cohort=in_cohort)
            self.stats.refuse(reason, client, error)
            if reason == "denied":
                self.rounds.client_left(client)  # so that the round does not wait for it
            elif reason not in ("malformed", "incompatible"):
                self.rounds.client_present(client)
            else:
                self.admission.unusable(client, now)
        else:
            self.admission.refund(client)

    def _catch_up(self, client: int, payload: bytes, now: float) -> list[Publish]:
        try:
            with self.stats.phase("catch-up"):
                data = self.server.catch_up(client, read_ask(payload)).data
        except (DecodeError, RemoteProtocolError) as error:
            reason = "malformed" if isinstance(error, DecodeError) else "incompatible"
            self.stats.refuse(reason, client, error)
            self.admission.unusable(client, now)
            return []
        self.rounds.client_present(client)
        self.stats.catch_ups += 1
        invited = self.rounds.expects(client)
        chunks = split(data, self._max_payload, invited=invited, ended=self.rounds.ended)
        topic = self.topics.of(DOWN, client)
        answers = [Publish(topic, chunk.write()) for chunk in chunks]
        self.stats.catch_up_bytes += sum(len(answer.payload) for answer in answers)
        return answers

    def _send_secure(self, messages: Mapping[int, bytes]) -> list[Publish]:
        """Return messages of a secure round, to publish."""
        self.stats.secure_bytes += sum(map(len, messages.values()))
        return [
            Publish(self.topics.of(SECURE, client), data, qos=1)
            for client, data in messages.items()
        ]

    def _repeat_secure(self, client: int) -> list[Publish]:
        """Return the message of a secure round that a client has not answered yet."""
        message = None if self.secure is None else self.secure.unanswered(client)
        return [] if message is None else self._send_secure({client: message})

    @property
    def _secure_phase_end(self) -> float | None:
        if self.secure is None or self.rounds.state is not RoundState.COLLECTING:
            return None
        return self.secure.phase_end(self.rounds.selected_at, self.rounds.policy.deadline)

    def _advance_secure(self, secure: SecureRounds, now: float) -> list[Publish]:
        """End phases of the secure round if it is time to; return the next messages."""
        messages: Mapping[int, bytes] = {}
        while self.rounds.state is RoundState.COLLECTING:
            end = self._secure_phase_end
            time_is_up = end is not None and now >= end
            if not secure.is_ready(self.rounds.presence.left, time_is_up=time_is_up):
                break
            messages = secure.advance()
            if secure.is_over:
                self._secure_round_over(secure)
        return self._send_secure(messages)

    def _secure_round_over(self, secure: SecureRounds) -> None:
        for client in self.rounds.cohort - secure.absent - self.rounds.presence.left:
            self.rounds.client_answered(client)
        if secure.reason:
            self.stats.round_abandoned(self.server.round, secure.reason)

    def tick(self, now: float) -> list[Publish]:
        """Start or finish a round if it is time to, and return the messages to publish."""
        secure = self.secure
        if secure is None:
            return self._tick_rounds(now, uploads_ended=False)
        messages = self._advance_secure(secure, now)
        return messages + self._tick_rounds(now, uploads_ended=secure.is_over)

    def _tick_rounds(self, now: float, *, uploads_ended: bool) -> list[Publish]:
        """Start or finish a round if it is time to, and return the announcement."""
        for client in self.admission.muted:
            self.rounds.client_left(client)  # no round waits for it
        self.admission.unmute(now)
        # The controller has no clock. Most calls only find that there is nothing to do.
        with self.stats.phase("aggregate"):
            outcome = self.rounds.tick(now, uploads_ended=uploads_ended)
        if outcome is None:
            return []
        if isinstance(outcome, RoundStarted):
            self._round_started(outcome.cohort)
            return [self._announce(None), *self._invite(outcome.cohort)]
        self.admission.round_finished()
        self.stats.round_finished(outcome)
        self.stats.privacy = self.server.privacy_spent
        for client, rounds in outcome.resting.items():
            self.stats.missed_deadline(client, rounds)
        self.last_counted = frozenset(outcome.broadcast.counted)
        self._round_started(outcome.next_cohort)
        return [self._announce(outcome.broadcast.data), *self._invite(outcome.next_cohort)]

    def _invite(self, cohort: frozenset[int]) -> list[Publish]:
        """Open the secure round of a new cohort; return its invitations."""
        if self.secure is None or not cohort:
            return []
        return self._send_secure(self.secure.start(cohort))

    def _round_started(self, cohort: frozenset[int]) -> None:
        self.stats.cohort = len(cohort)
        self.stats.resting = self.rounds.presence.count_resting(self.server.round)
        log.debug(
            "round %s: selected %s of %s clients",
            self.server.round,
            len(cohort),
            self.stats.present,
        )

    def _log_transition(self, transition: Transition) -> None:
        waits = transition.target is RoundState.WAITING
        if waits and transition.source is not RoundState.WAITING:
            log.info(
                "round %s: waiting for clients: %s available, %s required, quorum %s",
                self.server.round,
                self.rounds.presence.count,
                self.rounds.policy.required_clients,
                self.rounds.policy.quorum,
            )

    def _announce(self, broadcast: bytes | None) -> Publish:
        message = broadcast
        if message is None or len(message) > self._max_payload:
            # Clients that miss a broadcast ask for it, and get it in chunks.
            message = self.rounds.cohort_notice()
        deadline = self.rounds.policy.deadline
        payload = Announcement(message, deadline, self.rounds.ended).write()
        self.stats.announced_bytes += len(payload)
        return Publish(self.topics.round, payload, qos=1, retain=True)
