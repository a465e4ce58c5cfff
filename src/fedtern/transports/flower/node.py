"""A node's side of the exchange: read a message, let the app work, return an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from logging import ERROR, WARNING

from flwr.app import ConfigRecord, Context, Message, MetricRecord, MetricRecordValues, RecordDict
from flwr.common import log
from numpy.typing import ArrayLike

from fedtern import __version__
from fedtern.core.errors import (
    DecodeError,
    FedternError,
    MissedRounds,
    NonFiniteError,
    RemoteProtocolError,
    StoreError,
    format_error,
)
from fedtern.core.layout import Vector
from fedtern.core.protocol import Client, Sent
from fedtern.federation.interfaces import ClientLike
from fedtern.transports.flower.client_state import (
    SHARED_DIRECTORY,
    ClientState,
    open_client_state,
)
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.membership import Membership
from fedtern.transports.flower.messages import (
    KEY,
    Answer,
    AnswerKind,
    Handshake,
    RoundRequest,
    read_request,
)

_REPLY = "reply"  # name of the note with the metrics of the last upload


class UnusableResult(FedternError):
    """The app returned a result that cannot be sent."""


@dataclass(frozen=True, eq=False)
class WorkResult:
    """The result of an app's work.

    Attributes:
        reply: The app's reply.
        delta: The change of the weights; None if there is nothing to send.
        moments: Second moments of the delta, for the method ``variance`` only.
        on_sent: Called when the upload has been made.

    """

    reply: Message
    delta: ArrayLike | None = None
    moments: ArrayLike | None = None
    on_sent: Callable[[Sent], None] = lambda _sent: None


Work = Callable[[ClientLike, FederationSpec], WorkResult]
InitialWeights = Callable[[FederationSpec], Vector]


@dataclass(frozen=True, eq=False)
class Node:
    """Handles one message to a node.

    Attributes:
        message: The message.
        context: The node's context.
        initial_weights: Makes the initial model of a federation, for nodes that can do so by
            themselves. Without it, the server sends the model to new clients.

    """

    message: Message
    context: Context
    initial_weights: InitialWeights | None = None

    def handle(self, data: bytes, work: Work) -> Message:
        """Answer a message of the server.

        Args:
            data: The bytes in the message.
            work: Trains or evaluates; called for a request that the client can follow.

        Returns:
            The reply. Failures that the server should know of are answers, not exceptions.

        """
        try:
            return self._handle(data, work)
        except StoreError as error:  # perhaps temporary: an earlier request may still be running
            log(ERROR, "fedtern: %s", error)
            return self._reply(Answer(AnswerKind.NOT_READY, reason=str(error)))

    def _handle(self, data: bytes, work: Work) -> Message:
        try:
            request = read_request(data)
            if isinstance(request, Handshake):
                return self._reply(self._join(request))
        except StoreError:
            raise
        except (FedternError, KeyError, TypeError, ValueError) as error:
            return self._refuse(format_error(error))
        in_context = request.in_context
        state = open_client_state(self.context, request.federation, in_context=in_context)
        with state.locked():
            return self._take_part(request, state, work)

    def _join(self, handshake: Handshake) -> Answer:
        """Return the status of this node's client in the offered federation.

        Raises:
            RemoteProtocolError: The node is in a different federation of the same name.

        """
        offered = FederationSpec.from_json(handshake.spec)
        in_context = offered.in_context
        state = open_client_state(self.context, offered.federation, in_context=in_context)
        with state.locked():
            membership = Membership.read(state)
            is_new = membership is None
            if membership is None:
                membership = self._new_membership(offered)
                membership.write(state)
            elif difference := membership.spec.difference(offered):
                raise RemoteProtocolError(
                    f"node {self.context.node_id} (fedtern {__version__}) is already in a"
                    f" federation {offered.federation!r}, and that of the server (fedtern"
                    f" {handshake.version}) is different: {difference}. Give the new one another"
                    " name, or remove the node's state of the old one"
                )
            elif membership.spec != offered:  # in a value that no state depends on
                membership = replace(membership, spec=offered)
                membership.write(state)
            return self._status(membership, state, is_new=is_new)

    def _new_membership(self, spec: FederationSpec) -> Membership:
        # The nodes of a simulation are numbered; elsewhere, the server assigns numbers.
        number = self.context.node_config.get("partition-id") if spec.in_context else None
        return Membership(spec, None if number is None else int(number))

    def _status(self, membership: Membership, state: ClientState, *, is_new: bool) -> Answer:
        if membership.client is None:
            return Answer(AnswerKind.STATUS, data=membership.mark)
        # Without a membership, nothing shows to which federation an old client belonged.
        with state.client(lambda: self._new_client(membership), fresh=is_new) as client:
            if not is_new and client.round < 0:
                log(
                    WARNING,
                    "fedtern: the model of this node is gone: requesting it, and continuing with"
                    " an empty residual",
                )
            return Answer(
                AnswerKind.STATUS, membership.client, client.round, client.stamp, membership.mark
            )

    def _new_client(self, membership: Membership, *, without_weights: bool = False) -> Client:
        assert membership.client is not None  # only numbered members have a client
        weights = None
        if self.initial_weights is not None and not without_weights:
            weights = self.initial_weights(membership.spec)
        return membership.spec.new_client(membership.client, weights)

    def _take_part(self, request: RoundRequest, state: ClientState, work: Work) -> Message:
        """Bring the client up to date, then train or evaluate."""
        membership = Membership.read(state)
        if membership is None:
            reason = f"this node has no membership in federation {request.federation!r}"
            return self._reply(Answer(AnswerKind.NOT_READY, reason=reason))
        is_other = membership.client != request.client
        if is_other and membership.client is not None and not request.renumbered:
            raise StoreError(
                f"the state of node {self.context.node_id} belongs to client {membership.client},"
                f" but the request is for client {request.client}: {SHARED_DIRECTORY}"
            )
        if is_other:
            membership = replace(membership, client=request.client)
            membership.write(state)
        fresh = request.discard_state or is_other
        with state.client(
            lambda: self._new_client(membership, without_weights=fresh), fresh=fresh
        ) as client:
            try:
                if request.data:
                    client.receive(request.data)
                elif client.round < 0:
                    raise MissedRounds("this client has no weights yet", client.round)
            except (DecodeError, MissedRounds) as error:
                return self._not_ready(client, client.round, error)
            except RemoteProtocolError as error:
                # The client has followed another history, so none of its rounds is of use.
                return self._not_ready(client, -1, error)
            if not self.message.metadata.message_type.startswith("train"):
                return work(client, membership.spec).reply
            if client.pending is not None:
                return self._resend(state, client, client.pending)
            return self._train(state, client, work, membership.spec)

    def _train(
        self, state: ClientState, client: ClientLike, work: Work, spec: FederationSpec
    ) -> Message:
        position = (client.client_id, client.round, client.stamp)
        try:
            result = work(client, spec)
            if result.delta is None:
                return result.reply
            metrics = {name: dict(r) for name, r in result.reply.content.metric_records.items()}
            note = {"round": client.round, "stamp": client.stamp.hex(), "metrics": metrics}
            # Before the upload: another process may have to send both again.
            state.write_note(_REPLY, json.dumps(note))
            sent = client.send_delta(result.delta, result.moments)
            result.on_sent(sent)
        except (UnusableResult, NonFiniteError) as error:
            log(ERROR, "fedtern: no upload in round %s: %s", client.round, error)
            return self._reply(Answer(AnswerKind.FAILED, *position, reason=str(error)))
        return self._reply(Answer(AnswerKind.UPLOAD, *position, data=sent.data), metrics)

    def _resend(self, state: ClientState, client: ClientLike, data: bytes) -> Message:
        """Answer with the pending upload, if the server requests a round for a second time.

        The client does not train again: the upload and its residual belong together.
        """
        position = (client.client_id, client.round, client.stamp)
        try:
            note = json.loads(state.read_note(_REPLY) or "")
            metrics = note["metrics"]
            is_of_this_round = (note["round"], note["stamp"]) == (client.round, client.stamp.hex())
        except (KeyError, TypeError, ValueError):
            is_of_this_round = False
        if not is_of_this_round:
            reason = "the metrics of this node's pending upload are lost"
            return self._reply(Answer(AnswerKind.FAILED, *position, reason=reason))
        return self._reply(Answer(AnswerKind.UPLOAD, *position, data=data), metrics)

    def _not_ready(self, client: ClientLike, round: int, error: FedternError) -> Message:
        log(WARNING, "fedtern: cannot follow the server from round %s: %s", client.round, error)
        position = (client.client_id, round, client.stamp)
        return self._reply(Answer(AnswerKind.NOT_READY, *position, reason=str(error)))

    def _refuse(self, reason: str) -> Message:
        log(ERROR, "fedtern: this node cannot work with the server: %s", reason)
        return self._reply(Answer(AnswerKind.REFUSED, reason=reason, version=__version__))

    def _reply(
        self, answer: Answer, metrics: Mapping[str, dict[str, MetricRecordValues]] | None = None
    ) -> Message:
        content = RecordDict({KEY: ConfigRecord({KEY: answer.to_bytes()})})
        for name, record in (metrics or {}).items():
            content[name] = MetricRecord(record)
        return Message(content, reply_to=self.message)
