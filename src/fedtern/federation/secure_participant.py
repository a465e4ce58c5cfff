"""A client's part in one round with secure aggregation, after its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from fedtern.core.compressors import check_finite
from fedtern.core.envelope import SECURE
from fedtern.core.feedback import ErrorFeedback
from fedtern.core.layout import copy_vector
from fedtern.core.protocol import Sent, Terms
from fedtern.core.protocol.seeded_rng import seeded_rng
from fedtern.core.updates import Sparse
from fedtern.federation.interfaces import ClientLike
from fedtern.privacy.secure import (
    Context,
    Identity,
    SecureClient,
    check_secure_terms,
    clipped_level,
)
from fedtern.privacy.secure.messages import INVITATION


@dataclass(frozen=True)
class Answer:
    """A client's answer to a message of a secure round.

    Attributes:
        data: bytes for the server.
        sent: the update that these bytes contain, masked; None for other and repeated messages.

    """

    data: bytes
    sent: Sent | None = None


class SecureParticipant:
    """Answers the messages of one secure round.

    The client compresses its update when it knows the positions of the round, and keeps it as
    pending until a broadcast counts it or returns it to the residual. The update leaves the client
    only with masks.

    Args:
        client: follows the weights and keeps the residual.
        invitation: the server's message that starts the round.
        delta: change of the weights from training.
        carried: local values after training; see ``Client.send_delta``.
        identity: signing keys; None to trust the server with the public keys.

    Attributes:
        round: the round.
        keys: the answer to the invitation.

    Raises:
        DecodeError: the invitation is malformed.
        NonFiniteError: a value cannot be sent; the message names its tensor.
        RemoteProtocolError: the invitation is of another round or history.
        ValueError: ``delta`` has the wrong shape.

    """

    def __init__(
        self,
        client: ClientLike,
        invitation: bytes,
        delta: ArrayLike,
        carried: Mapping[str, Any] | None = None,
        identity: Identity | None = None,
    ) -> None:
        layout = client.terms.layout
        self.round = client.round
        self._client = client
        self._carried = carried
        self._delta = copy_vector(delta, layout, "delta")
        check_finite(self._delta, layout)
        # With the residual: the values from which the upload is selected.
        self._target = self._delta + client.residual
        context = Context(client.terms, client.stamp, client.round)
        self._member = SecureClient(client.client_id, context, invitation, identity=identity)
        positions = None
        if self._member.is_leader:
            positions = check_secure_terms(client.terms).largest(self._target, layout)
        self.keys = Answer(self._member.advertise(positions))
        self._repeated: dict[bytes, Answer] = {invitation: self.keys}  # by message

    def receive(self, data: bytes) -> Answer:
        """Read a message from the server and return the answer to it.

        A message that was received before gets the same bytes again, and ``sent`` only once.

        Raises:
            DecodeError: the bytes are malformed.
            RemoteProtocolError: the message is forbidden now, or asks for too much. The client must
                leave the round: it answers nothing more.

        """
        if data in self._repeated:
            return self._repeated[data]
        found = self._member.receive(data)
        answer = self._upload() if found is None else Answer(found)
        self._repeated[data] = Answer(answer.data)
        return answer

    def _upload(self) -> Answer:
        """Compress the update and return it with masks: the shares of the round have arrived."""
        client = self._client
        compressor = self._member.compressor
        rng = seeded_rng(client.seed, 8, client.client_id, self.round)
        clipped = clipped_level(self._target, compressor, rng)
        sent = client.send_delta(
            self._delta, carried=self._carried, feedback=ErrorFeedback(compressor)
        )
        assert isinstance(sent.update, Sparse)  # the compressor makes no other update
        return Answer(self._member.mask(compressor.to_levels(sent.update), clipped), sent)


@dataclass(frozen=True)
class Head:
    """The head of a message of a secure round.

    Attributes:
        round: the round.
        is_invitation: whether the message starts the round.

    """

    round: int
    is_invitation: bool


def read_head(message: bytes, terms: Terms) -> Head:
    """Read the head of a message of secure aggregation.

    Raises:
        DecodeError: the bytes are malformed, or not such a message.
        RemoteProtocolError: the message is of another model or method.

    """
    header, reader = terms.open(message, SECURE)
    return Head(header.round, reader.byte() == INVITATION)
