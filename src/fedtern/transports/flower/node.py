"""A node's side of the exchange: read a message, let the app work, return an answer."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from logging import ERROR, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import log
from numpy.typing import ArrayLike

from fedtern import __version__
from fedtern.core.carried import NO_VALUES, Values
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
    ATTACHMENT,
    KEY,
    Answer,
    AnswerKind,
    Handshake,
    RoundRequest,
    is_long,
    make_attachment,
    read_request,
    take_attachment,
)

_REPLY = "reply"  # name of the note with the records that went with the last upload


class UnusableResult(FedternError):
    """The app returned a result that cannot be sent."""


@dataclass(frozen=True, eq=False)
class WorkResult:
    """The result of an app's work.

    Attributes:
        reply: The app's reply. It has all records but the model, and an empty record ``KEY`` in
            its place.
        delta: The change of the weights; None if there is nothing to send.
        moments: Second moments of the delta, for the method ``variance`` only.
        on_sent: Called when the upload has been made.
        carried: Values of all carried tensors after training; None if they are unchanged.
        arrays_key: Key of the record that had the model; empty if the reply had no model.

    """

    reply: Message
    delta: ArrayLike | None = None
    moments: ArrayLike | None = None
    on_sent: Callable[[Sent], None] = lambda _sent: None
    carried: Mapping[str, ArrayLike] | None = None
    arrays_key: str = ""


@dataclass(frozen=True, eq=False)
class InitialModel:
    """The initial model of a federation, on a node that has it already.

    Attributes:
        weights: The weights.
        carried: Values of the carried tensors.

    """

    weights: Vector
    carried: Values = field(default_factory=lambda: NO_VALUES)


Work = Callable[[ClientLike, FederationSpec], WorkResult]
MakeInitialModel = Callable[[FederationSpec], InitialModel | None]


@dataclass(frozen=True, eq=False)
class Node:
    """Handles one message to a node.

    Attributes:
        message: The message.
        context: The node's context.
        initial_model: Makes the initial model of a federation, for nodes that can do so by
            themselves. Without it, the server sends the model to new clients.

    """

    message: Message
    context: Context
    initial_model: MakeInitialModel | None = None

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
            if request.attached:
                request = replace(request, data=take_attachment(self.message.content))
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
            if membership is not None and membership.has_ended(offered):
                membership = None
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
            # No number affects the position of a client that has not taken part yet.
            round, stamp = -1, bytes(3)
            if self.initial_model is not None:
                client = self._new_client(membership.spec, 0, own_model=True)
                round, stamp = client.round, client.stamp
            return Answer(AnswerKind.STATUS, None, round, stamp, membership.mark)
        # Without a membership, nothing shows to which federation an old client belonged.
        number = membership.client
        own_model = is_new or not state.has_client()
        with state.client(
            lambda: self._new_client(membership.spec, number, own_model=own_model), fresh=is_new
        ) as opened:
            if not is_new and opened.round < 0:
                log(
                    WARNING,
                    "fedtern: the model of this node is gone: requesting it, and continuing with"
                    " an empty residual",
                )
            return Answer(AnswerKind.STATUS, number, opened.round, opened.stamp, membership.mark)

    def _new_client(self, spec: FederationSpec, number: int, *, own_model: bool) -> Client:
        """Return a client without a past.

        Args:
            spec: The federation.
            number: Number of the client.
            own_model: Whether the client may start from the initial model that the node has.

        """
        model = None
        if self.initial_model is not None and own_model:
            model = self.initial_model(spec)
        if model is None:
            return spec.new_client(number)
        return spec.new_client(number, model.weights, model.carried)

    def _take_part(self, request: RoundRequest, state: ClientState, work: Work) -> Message:
        """Bring the client up to date, then train or evaluate."""
        membership = Membership.read(state)
        if membership is None:
            reason = f"this node has no membership in federation {request.federation!r}"
            return self._reply(Answer(AnswerKind.NOT_READY, reason=reason))
        is_first = membership.client is None
        is_other = membership.client != request.client
        if is_other and not is_first and not request.renumbered:
            raise StoreError(
                f"the state of node {self.context.node_id} belongs to client {membership.client},"
                f" but the request is for client {request.client}: {SHARED_DIRECTORY}"
            )
        if is_other:
            membership = replace(membership, client=request.client)
            membership.write(state)
        fresh = request.discard_state or is_other
        own_model = not request.discard_state and (is_first or not state.has_client())
        spec = replace(membership.spec, arrays_key=request.arrays_key or membership.spec.arrays_key)
        with state.client(
            lambda: self._new_client(spec, request.client, own_model=own_model), fresh=fresh
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
                result = work(client, spec)
                if result.arrays_key:
                    answer = Answer(
                        AnswerKind.EVALUATED,
                        client.client_id,
                        client.round,
                        client.stamp,
                        arrays_key=result.arrays_key,
                    )
                    result.reply.content[KEY] = ConfigRecord({KEY: answer.to_bytes()})
                return result.reply
            if client.pending is not None:
                return self._resend(state, client, client.pending)
            return self._train(state, client, work, spec)

    def _train(
        self, state: ClientState, client: ClientLike, work: Work, spec: FederationSpec
    ) -> Message:
        position = (client.client_id, client.round, client.stamp)
        try:
            result = work(client, spec)
            if result.delta is None:
                return result.reply
            # Before the upload: another process may have to send both again.
            state.write_note(_REPLY, _describe_reply(client, result))
            sent = client.send_delta(result.delta, result.moments, result.carried, overwrite=True)
            result.on_sent(sent)
        except (UnusableResult, NonFiniteError) as error:
            log(ERROR, "fedtern: no upload in round %s: %s", client.round, error)
            return self._reply(Answer(AnswerKind.FAILED, *position, reason=str(error)))
        return _add_upload(result.reply, position, sent.data, result.arrays_key)

    def _resend(self, state: ClientState, client: ClientLike, data: bytes) -> Message:
        """Answer with the pending upload, if the server requests a round for a second time.

        The client does not train again: the upload and its residual belong together.
        """
        position = (client.client_id, client.round, client.stamp)
        try:
            note = json.loads(state.read_note(_REPLY) or "")
            is_of_this_round = (note["round"], note["stamp"]) == (client.round, client.stamp.hex())
            content = _read_records(note["records"])
            arrays_key = str(note["arrays_key"])
        except (KeyError, TypeError, ValueError):
            is_of_this_round = False
        if not is_of_this_round:
            reason = "the metrics of this node's pending upload are lost"
            return self._reply(Answer(AnswerKind.NOT_READY, *position, reason=reason))
        return _add_upload(Message(content, reply_to=self.message), position, data, arrays_key)

    def _not_ready(self, client: ClientLike, round: int, error: FedternError) -> Message:
        log(WARNING, "fedtern: cannot follow the server from round %s: %s", client.round, error)
        position = (client.client_id, round, client.stamp)
        return self._reply(Answer(AnswerKind.NOT_READY, *position, reason=str(error)))

    def _refuse(self, reason: str) -> Message:
        log(ERROR, "fedtern: this node cannot work with the server: %s", reason)
        return self._reply(Answer(AnswerKind.REFUSED, reason=reason, version=__version__))

    def _reply(self, answer: Answer) -> Message:
        content = RecordDict({KEY: ConfigRecord({KEY: answer.to_bytes()})})
        return Message(content, reply_to=self.message)


def _add_upload(
    reply: Message, position: tuple[int, int, bytes], data: bytes, arrays_key: str
) -> Message:
    """Put an upload into an app's reply, in the place of the model."""
    attached = is_long(data)
    sent = b"" if attached else data
    answer = Answer(
        AnswerKind.UPLOAD, *position, data=sent, arrays_key=arrays_key, attached=attached
    )
    reply.content[KEY] = ConfigRecord({KEY: answer.to_bytes()})
    if attached:
        reply.content[ATTACHMENT] = make_attachment(data)
    return reply


def _describe_reply(client: ClientLike, result: WorkResult) -> str:
    """Return the records that go with an upload as JSON, for ``_resend``.

    Further arrays, which may be as large as the model, are not kept. Without them the reply cannot
    be sent again: then the update returns to the residual, as after a lost reply.
    """
    content = result.reply.content
    note: dict[str, object] = {"round": client.round, "stamp": client.stamp.hex()}
    if not content.array_records:
        note["arrays_key"] = result.arrays_key
        note["records"] = [
            [name, isinstance(record, MetricRecord), _to_json(record)]
            for name, record in content.items()
            if not isinstance(record, ArrayRecord)
        ]
    return json.dumps(note)


def _to_json(record: MetricRecord | ConfigRecord) -> dict[str, object]:
    """Return the values of a record; bytes, which JSON does not have, become objects."""
    return {
        name: [_encode(item) for item in value] if isinstance(value, list) else _encode(value)
        for name, value in record.items()
    }


def _encode(value: object) -> object:
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes) else value


def _decode(value: Any) -> Any:
    return b64decode(value["base64"]) if isinstance(value, dict) else value


def _read_records(records: list[tuple[str, bool, dict[str, Any]]]) -> RecordDict:
    """Undo the records of ``_describe_reply``."""
    content = RecordDict()
    for name, is_metric, values in records:
        decoded: dict[str, Any] = {
            key: [_decode(item) for item in value] if isinstance(value, list) else _decode(value)
            for key, value in values.items()
        }
        content[name] = MetricRecord(decoded) if is_metric else ConfigRecord(decoded)
    return content
