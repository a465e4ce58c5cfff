"""Simulate a federation with secure aggregation: every message of every phase is real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtern.core.feedback import ErrorFeedback
from fedtern.core.feedback.error_feedback import add_residual
from fedtern.core.layout import Vector
from fedtern.core.protocol import Broadcast, Sent
from fedtern.core.protocol.seeded_rng import seeded_rng
from fedtern.core.protocol.uplink import Uplink
from fedtern.core.snapshot import Snapshot
from fedtern.core.updates import Sparse
from fedtern.federation.client_session import Outcome
from fedtern.federation.secure_rounds import finish_with_sum
from fedtern.privacy.secure import (
    FIRST_QUANTUM,
    Context,
    SecureClient,
    SecureServer,
    SecureSum,
    clipped_level,
    next_quantum,
    shared_positions_of,
)
from fedtern.privacy.secure.messages import Indices, encode_position_list
from fedtern.privacy.secure.method import AtPositions, random_positions
from fedtern.transports.local.federation import Exchange, Federation, UploadSize

PHASES = 4
"""Phases in which a client can leave: keys, shares, masked upload, revealed shares."""


@dataclass
class SecureTotals:
    """Counters of secure rounds.

    Attributes:
        abandoned: rounds whose sum was not recovered.
        left: clients that left a round before its end.
        payload_up: bytes of masked uploads and of leaders' positions, per client of a cohort,
            summed over rounds. All other bytes of uploads are for keys and shares.

    """

    abandoned: int = 0
    left: int = 0
    payload_up: float = 0.0


@dataclass(eq=False)
class _Participant:
    """A client in a round."""

    client: int
    outcome: Outcome
    uplink: Uplink
    machine: SecureClient | None  # None without messages
    leaves_at: int  # the first phase in which it does not answer
    up: int = 0  # bytes sent
    down: int = 0  # bytes received
    payload: int = 0  # bytes sent, without those for keys and shares
    sent: Sent | None = None

    @property
    def member(self) -> SecureClient:
        """This client's side of the secure round."""
        assert self.machine is not None
        return self.machine


class SecureFederation(Federation):
    """A federation whose server learns only the sum of the uploads.

    Args:
        arguments: arguments of ``Federation``.
        dropout: the probability that a client leaves a round, in a random phase.
        messages: whether the messages of secure rounds are made and read. Without them, the sums
            are computed directly: the weights are the same to the last bit, a simulation takes a
            fraction of the time, and the bytes of secure rounds are not counted.
        options: further arguments of ``Federation``.

    Attributes:
        quantum: the quantum of the next round.
        totals: counters.

    """

    def __init__(
        self, *arguments: Any, dropout: float = 0.0, messages: bool = True, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        if dropout and not messages:
            raise ValueError("clients can leave a round only if messages=True")
        self.messages = messages
        rule = shared_positions_of(self.server.terms.method)
        if rule is None:
            raise ValueError("the method has no secure aggregation; use fedtern.secure_topk")
        self.dropout = dropout
        self.quantum = FIRST_QUANTUM
        self.totals = SecureTotals()
        self._rule = rule
        self._sum: SecureSum | None = None  # of the open round
        self._participants: dict[int, _Participant] = {}

    def exchange(self, cohort: list[int]) -> Exchange:
        """Let the clients of a cohort download, train and take part in a secure round."""
        context = Context(self.server.terms, self.server.stamp, self.server.round)
        secure = SecureServer(context, cohort, self.quantum)
        if not self.messages:
            return self._add_directly(cohort, secure)
        outcomes = self.trainer.train(
            self.witness.weights, (self.job(i) for i in cohort), self.witness.carried
        )
        chance = np.random.default_rng([self.seed, 7, self.server.round])
        outgoing = secure.invitations()
        participants = {}
        for i, invitation in outgoing.items():
            with self.meter.phase("train"):
                outcome = next(outcomes)
            leaves_at = PHASES
            if chance.random() < self.dropout:
                leaves_at = int(chance.integers(PHASES))
            machine = SecureClient(i, context, invitation)
            participants[i] = _Participant(i, outcome, self.uplink(i), machine, leaves_at)
        downloads = {i: self.download(i) for i in cohort}
        for phase in range(PHASES):
            for i, data in outgoing.items():
                participants[i].down += len(data)
                if phase < participants[i].leaves_at:
                    self._answer(secure, participants[i], data)
            with self.meter.phase("aggregate"):
                outgoing = secure.advance()
            if not outgoing:
                break
        self._sum = secure.result
        self._participants = participants
        everyone = participants.values()
        self.totals.left += sum(each.leaves_at < PHASES for each in everyone)
        self.totals.payload_up += sum(each.payload for each in everyone) / len(cohort)
        return Exchange(
            [downloads[i] + participants[i].down for i in cohort],
            [UploadSize(participants[i].up, 8 * participants[i].payload) for i in cohort],
        )

    def _answer(self, secure: SecureServer, participant: _Participant, data: bytes) -> None:
        """Let a client answer a message from the server."""
        machine = participant.member
        with self.meter.phase("encode"):
            if data == machine.invitation:
                answer = self._advertise(participant)
            else:
                answer = machine.receive(data) or self._mask(participant)
        with self.meter.phase("decode"):
            secure.receive(machine.client_id, answer)
        participant.up += len(answer)

    def _advertise(self, participant: _Participant) -> bytes:
        """Return a client's keys, with the positions of its largest values if it leads."""
        positions = None
        if participant.member.is_leader:
            positions = self._largest(participant)
            participant.payload += len(encode_position_list(positions, self.server.terms.layout))
        return participant.member.advertise(positions)

    def _mask(self, participant: _Participant) -> bytes:
        """Return the masked upload of a client."""
        machine = participant.member
        answer = machine.mask(*self._compress(participant, machine.compressor))
        participant.payload += len(answer)
        return answer

    def _largest(self, participant: _Participant) -> Indices:
        """Return the positions of a client's largest values."""
        return self._rule.largest(_target(participant), self.server.terms.layout)

    def _compress(
        self, participant: _Participant, compressor: AtPositions
    ) -> tuple[NDArray[np.int64], int]:
        """Compress a client's update and keep it as pending; return what to mask."""
        round = self.server.round
        rng = seeded_rng(self.seed, 8, participant.client, round)
        clipped = clipped_level(_target(participant), compressor, rng)
        with self.meter.phase("compress"):
            update, after = participant.uplink.compress(
                participant.outcome.delta, round, feedback=ErrorFeedback(compressor)
            )
        assert isinstance(update, Sparse)
        # The pending upload stays on the client.
        participant.sent = participant.uplink.seal(update, after, self.witness.stamp, round)
        return compressor.to_levels(update), clipped

    def _add_directly(self, cohort: list[int], secure: SecureServer) -> Exchange:
        """Let a cohort train, and add the levels without messages."""
        outcomes = self.trainer.train(
            self.witness.weights, (self.job(i) for i in cohort), self.witness.carried
        )
        participants = {
            i: _Participant(i, outcome, self.uplink(i), None, PHASES)
            for i, outcome in zip(cohort, outcomes, strict=True)
        }
        downloads = [self.download(i) for i in cohort]
        positions = random_positions(self.server.terms, self.server.round)
        if secure.leader is not None:
            chosen = self._largest(participants[secure.leader])
            positions = chosen if chosen.size else positions
        compressor = self._rule.at(positions, self.quantum)
        total = np.zeros(positions.size, np.int64)
        clipped = 0
        for participant in participants.values():
            levels, level = self._compress(participant, compressor)
            total += levels
            clipped += level
        share = clipped / (self._rule.levels * len(cohort))
        self._sum = SecureSum(frozenset(cohort), positions, total, self.quantum, share)
        self._participants = participants
        return Exchange(downloads, [UploadSize(0, 0.0)] * len(cohort))

    def finish_round(self) -> Broadcast:
        """Apply the secure sum, or return all updates to the residuals if there is none."""
        found = self._sum
        if found is None:
            self.totals.abandoned += 1
        else:
            self.quantum = next_quantum(self.quantum, found.clipped)
        broadcast = finish_with_sum(self.server, found)
        for i, participant in self._participants.items():
            if participant.sent is not None:
                participant.uplink.settle(i in broadcast.counted)
                state = participant.uplink.state
                self.commit(i, participant.outcome, participant.sent, state)
        self._sum = None
        self._participants = {}
        return broadcast

    def snapshot(self) -> Snapshot:
        """Return the whole state, for ``restore``."""
        found = super().snapshot()
        secure = {"quantum": self.quantum, "totals": asdict(self.totals)}
        return Snapshot(found.arrays, {**found.meta, "secure": secure})

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from the state of a snapshot; see ``Federation.restore``."""
        super().restore(snapshot)
        secure: Mapping[str, Any] = snapshot.meta["secure"]
        self.quantum = float(secure["quantum"])
        self.totals = SecureTotals(**secure["totals"])


def _target(participant: _Participant) -> Vector:
    """Return a client's residual plus the change from its training."""
    return add_residual(participant.outcome.delta.copy(), participant.uplink.state)
