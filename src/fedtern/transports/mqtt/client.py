"""The client's side of the MQTT protocol, without a network and without a clock.

``MqttClient`` is told what the server publishes, with the time, and returns messages to publish.
``join`` is the loop around it, and trains.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedtern.core.errors import (
    DecodeError,
    FedternError,
    LateUpload,
    MisdeliveredMessage,
    MissedRounds,
    RemoteProtocolError,
)
from fedtern.core.layout import copy_vector
from fedtern.core.protocol import Sent
from fedtern.federation.interfaces import ClientLike
from fedtern.federation.secure_participant import SecureParticipant, read_head
from fedtern.privacy.secure import Identity, shared_positions_of
from fedtern.transports.mqtt.messages import Announcement, write_ask, write_upload
from fedtern.transports.mqtt.reassembly import Chunk, Reassembly
from fedtern.transports.mqtt.topics import (
    ABSENT,
    ALIVE,
    ASK,
    PRESENT,
    SECURE,
    UP,
    Publish,
    Topics,
)

log = logging.getLogger("fedtern.mqtt")

# Seconds before a request to catch up is repeated. Each repetition doubles them.
_FIRST_RETRY = 5.0
_LAST_RETRY = 300.0
# Seconds after which a client repeats that it is present. The server can have lost it: the last
# will of an older connection may arrive after the new connection's first message.
_PRESENCE_INTERVAL = 120.0


@dataclass(frozen=True, eq=False)
class Delta:
    """Change of the weights, as an alternative to new weights; see ``Client.send_delta``."""

    values: ArrayLike
    moments: ArrayLike | None = None
    carried: Mapping[str, ArrayLike] | None = None


class MqttClient:
    """Follows the announcements, requests missed rounds, and knows when to train.

    With a method of secure aggregation, it also waits for the server's invitation before it trains,
    and publishes the update only with masks.

    Args:
        client: follows the weights and makes uploads. Its ``federation`` names the topics.
        num_examples: number of training examples, for methods that weight clients by it.
        identity: signing keys for secure aggregation; None to trust the server with public keys.
        on_upload: called with each new upload before it is published.

    Raises:
        ValueError: ``num_examples`` is out of range.

    """

    def __init__(
        self,
        client: ClientLike,
        num_examples: int = 1,
        identity: Identity | None = None,
        on_upload: Callable[[Sent], None] | None = None,
    ) -> None:
        if not 0 < num_examples < 1 << 53:
            raise ValueError(f"num_examples must be in 1 ... 2**53 - 1, got {num_examples}")
        self.client = client
        self.num_examples = num_examples
        self.topics = Topics(client.federation)
        self.reassembly = Reassembly(client.terms.layout)
        self.is_secure = shared_positions_of(client.terms.method) is not None
        self._identity = identity
        self._on_upload = on_upload
        self._invitation: bytes | None = None  # to a secure round, the newest one
        self._invitation_round = -1
        self._participant: SecureParticipant | None = None  # in the secure round
        self._left_round = -1  # secure round that this client has left
        self._invited_round = -1  # newest round that this client is invited to
        self._final_round: int | None = None  # known after the federation's end
        self._deadline: float | None = None  # seconds, as announced
        self._announced_at = 0.0  # time of the last announcement
        self._present_at = 0.0  # time when the server last knew that this client is present
        self._asked_at: float | None = None  # time of the open request to catch up
        self._retry_after = _FIRST_RETRY

    @property
    def should_train(self) -> bool:
        """Whether the client is invited to its round and has not uploaded."""
        invited = self.client.round >= 0 and self._invited_round == self.client.round
        waits = self.is_secure and not self._can_start_secure
        return invited and not waits and self.client.pending is None and self._final_round is None

    @property
    def _can_start_secure(self) -> bool:
        """Whether the invitation to this secure round has arrived and was not used."""
        round = self.client.round
        started = self._participant is not None and self._participant.round == round
        return self._invitation_round == round and self._left_round != round and not started

    @property
    def ended(self) -> bool:
        """Whether the federation has ended and the client has its final weights."""
        return self._final_round is not None and self.client.round >= self._final_round

    @property
    def next_tick(self) -> float | None:
        """Time at which to call ``tick`` if nothing happens before; None for never."""
        if self._asked_at is not None:
            return self._asked_at + self._retry_after
        if self._final_round is not None:
            return None
        return min(self._present_at + _PRESENCE_INTERVAL, self._announcement_due)

    @property
    def _announcement_due(self) -> float:
        """Time after which an announcement was probably lost: one and a half rounds."""
        if self._deadline is None:
            return math.inf
        return self._announced_at + 1.5 * self._deadline + self._retry_after

    def connected(self, now: float) -> list[Publish]:
        """Report that the client is present on a new connection, the first or another one."""
        self._announced_at = now
        self._asked_at = None
        self.reassembly.clear()
        messages = self._report_presence(now)
        if self.client.round < 0:
            messages += self._ask(now)
        return messages

    def goodbye(self) -> Publish:
        """Return the message that the client leaves, which is also its last will."""
        return self.presence(ABSENT)

    def presence(self, payload: bytes) -> Publish:
        """Return a message on the client's presence topic: ``PRESENT`` or ``ABSENT``."""
        topic = self.topics.of(ALIVE, self.client.client_id)
        return Publish(topic, payload, qos=1, retain=True)

    def _report_presence(self, now: float) -> list[Publish]:
        self._present_at = now
        return [self.presence(PRESENT)]

    def tick(self, now: float) -> list[Publish]:
        """Request missed rounds after a long silence, or report that the client is present."""
        if self.next_tick is None or now < self.next_tick:
            return []
        if self._asked_at is not None:
            self._retry_after = min(2 * self._retry_after, _LAST_RETRY)
            log.warning("no answer in %.0f s: asking again", now - self._asked_at)
        elif now < self._announcement_due:
            return self._report_presence(now)
        self._asked_at = None
        return self._ask(now)

    def _ask(self, now: float) -> list[Publish]:
        if self._asked_at is not None:
            return []
        self._asked_at = now
        self._present_at = now
        self.reassembly.start_request()
        topic = self.topics.of(ASK, self.client.client_id)
        return [Publish(topic, write_ask(self.client.round), qos=1)]

    def receive(self, topic: str, payload: bytes, now: float) -> list[Publish]:
        """Handle a message of the server, and return messages to publish.

        Malformed messages are logged and ignored.

        Raises:
            RemoteProtocolError: the message is of another model, method or history.

        """
        try:
            if topic == self.topics.round:
                return self._receive_announcement(Announcement.read(payload), now)
            if topic == self.topics.of(SECURE, self.client.client_id):
                return self._receive_secure(payload)
            return self._receive_chunk(Chunk.read(payload), now)
        except DecodeError as error:
            # An open request stays open, with its time: the answer may still come.
            log.warning("ignored %s bytes on %s: %s", len(payload), topic, error)
            return []

    def _receive_announcement(self, announcement: Announcement, now: float) -> list[Publish]:
        was_invited = self._invited_round == self.client.round
        try:
            received = self.client.receive(announcement.message)
        except MissedRounds as missed:
            self._note_announcement(announcement, missed.leads_to, now)
            return self._ask(now)
        if received.leads_to < received.since:
            return []  # an old message that the broker retained
        self._note_announcement(announcement, received.leads_to, now)
        self._close_request()
        if received.invited:
            self._invited_round = received.round
            if not received.is_new:
                return self._repeat_upload()  # it may have been lost
        if not was_invited or not received.is_new:
            return []
        self._present_at = now
        # A client whose upload did not count may be unresponsive to the server.
        return [] if received.counted else self._report_presence(now)

    def _note_announcement(self, announcement: Announcement, leads_to: int, now: float) -> None:
        self._deadline = announcement.deadline
        self._announced_at = now
        self._final_round = leads_to if announcement.ended else None

    def _receive_chunk(self, chunk: Chunk, now: float) -> list[Publish]:
        if self.reassembly.add(chunk) and self._asked_at is not None:
            self._asked_at = now  # no timeout while the answer makes progress
        data = self.reassembly.take(chunk.count)
        if data is None:
            return []
        try:
            self.client.receive(data)
        except MissedRounds:
            self._asked_at = None
            return self._ask(now)
        except MisdeliveredMessage as error:
            # The request stays open: its answer may still come.
            log.warning("ignored a catch-up: %s", error)
            return []
        self._announced_at = now
        self._close_request()
        if chunk.ended:
            self._final_round = self.client.round
        if chunk.invited:
            self._invited_round = self.client.round
            return self._repeat_upload()
        return []

    def _close_request(self) -> None:
        self._asked_at = None
        self._retry_after = _FIRST_RETRY
        self.reassembly.clear()

    def trained(self, result: Any) -> list[Publish]:
        """Make the upload from the result of training; return the messages to publish.

        Args:
            result: new weights, or a ``Delta``.

        Raises:
            NonFiniteError: a value cannot be sent; the message names its tensor.
            ValueError: the result has the wrong shape.

        """
        if self.is_secure:
            return self._start_secure(result)
        if isinstance(result, Delta):
            sent = self.client.send_delta(result.values, result.moments, result.carried)
        else:
            sent = self.client.send(result)
        return [self._publish(sent.data, sent)]

    def _repeat_upload(self) -> list[Publish]:
        # The pending upload of a secure round is not masked. The server repeats its messages.
        if self.is_secure or self.client.pending is None:
            return []
        return [self._publish(self.client.pending)]

    def _publish(self, data: bytes, sent: Sent | None = None) -> Publish:
        if sent is not None and self._on_upload is not None:
            self._on_upload(sent)
        topic = self.topics.of(UP, self.client.client_id)
        # Secure sums have equal weights; the number of examples would be a plain statistic.
        num_examples = 1 if self.is_secure else self.num_examples
        return Publish(topic, write_upload(num_examples, data), qos=1)

    def _start_secure(self, result: Any) -> list[Publish]:
        """Answer the invitation to a secure round with the public keys."""
        client = self.client
        carried = None
        if isinstance(result, Delta):
            delta = result.values
            carried = result.carried
        else:
            new = copy_vector(result, client.terms.layout, "new_weights")
            with np.errstate(over="ignore", invalid="ignore"):
                delta = new - client.weights
        invitation = self._invitation
        assert invitation is not None  # should_train
        try:
            participant = SecureParticipant(client, invitation, delta, carried, self._identity)
        except (DecodeError, RemoteProtocolError) as error:
            self._leave_secure(error)
            return []
        self._participant = participant
        return [self._publish(participant.keys.data)]

    def _receive_secure(self, data: bytes) -> list[Publish]:
        """Handle a message of a secure round."""
        if not self.is_secure:
            raise DecodeError("this method has no secure aggregation")
        head = read_head(data, self.client.terms)
        if head.round < self.client.round or head.round == self._left_round:
            return []  # of a round that is over for this client
        participant = self._participant
        if head.is_invitation and data != self._invitation:
            # A server that restarted may repeat its round. That is safe before the masked upload.
            self._invitation = data
            self._invitation_round = head.round
            self._participant = None
            return []
        if participant is None or participant.round != head.round:
            return []
        try:
            answer = participant.receive(data)
        except LateUpload:
            return []  # a repeated message, which has had its answer
        except FedternError as error:
            self._leave_secure(error)
            return []
        return [self._publish(answer.data, answer.sent)]

    def _leave_secure(self, reason: FedternError) -> None:
        """Leave this secure round."""
        log.warning("round %s: left the secure round: %s", self.client.round, reason)
        self._left_round = self.client.round
        self._participant = None
