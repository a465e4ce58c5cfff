"""A node's side of the conversation: a frame in, work in between, a frame out."""

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
from fedtern.transports.flower import messages
from fedtern.transports.flower.client_state import SHARED, ClientState, client_state_of
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.membership import Membership
from fedtern.transports.flower.messages import KEY, Answer, Hello, Turn

_REPLY = "reply"


class Unusable(FedternError):
    """What an app returned cannot be sent."""


@dataclass(frozen=True, eq=False)
class Worked:
    """The result of an app's work.

    Attributes:
        reply: the app's reply.
        delta: the change of the weights; None if there is nothing to send.
        moments: second moments of the delta, for ``variance`` only.
        on_sent: called when the upload has been made.

    """

    reply: Message
    delta: ArrayLike | None = None
    moments: ArrayLike | None = None
    on_sent: Callable[[Sent], None] = lambda _sent: None


Work = Callable[[ClientLike, FederationSpec], Worked]
Initial = Callable[[FederationSpec], Vector]


@dataclass(frozen=True, eq=False)
class Node:
    """One message's worth of a node: finds the client's state, does the turn, keeps the state.

    ``initial`` makes the federation's initial model where a node can do so by itself; without it,
    a new client is sent the model.
    """

    message: Message
    context: Context
    initial: Initial | None = None

    def handle(self, data: bytes, work: Work) -> Message:
        """Answer a frame; a turn is worked on in between."""
        try:
            return self._handle(data, work)
        except StoreError as error:  # perhaps an earlier turn has not ended: there will be others
            log(ERROR, "fedtern: %s", error)
            return self._answer(Answer(messages.LOST, reason=str(error)))

    def _handle(self, data: bytes, work: Work) -> Message:
        try:
            request = messages.read_request(data)
            if isinstance(request, Hello):
                return self._answer(self._introduce(request))
        except StoreError:
            raise
        except (FedternError, KeyError, TypeError, ValueError) as error:
            return self._refuse(format_error(error))
        home = client_state_of(self.context, request.federation, in_context=request.in_context)
        with home.alone():
            return self._take_turn(request, home, work)

    def _introduce(self, hello: Hello) -> Answer:
        """Where this node's client of a federation is; refuse one that it cannot be part of."""
        offered = FederationSpec.from_json(hello.terms)
        home = client_state_of(self.context, offered.federation, in_context=offered.in_context)
        with home.alone():
            return self._be_here(hello, offered, home)

    def _be_here(self, hello: Hello, offered: FederationSpec, home: ClientState) -> Answer:
        known, before = Membership.read(home), True
        if known is None:
            # The nodes of a simulation are numbered; elsewhere, the server gives out numbers.
            number = self.context.node_config.get("partition-id") if offered.in_context else None
            known = Membership(offered, None if number is None else int(number))
            known.write(home)
            before = False
        elif difference := known.charter.differs(offered):
            raise RemoteProtocolError(
                f"node {self.context.node_id} (fedtern {__version__}) is in a federation"
                f" {offered.federation!r} already, and the server's (fedtern {hello.version}) is"
                f" another: {difference}. Give the new one another name, or remove the node's state"
                " of the old one"
            )
        elif known.charter != offered:  # in what is no part of any state
            known = replace(known, charter=offered)
            known.write(home)
        if known.client is None:
            return Answer(messages.HERE, data=known.mark)
        # Where nothing is known of what the federation was, its client is of no use.
        with home.client(lambda: self._new(known), fresh=not before) as client:
            if before and client.round < 0:
                log(WARNING, "fedtern: this node's model is gone: asking for it, with an empty"
                    " residual")  # fmt: skip
            return Answer(messages.HERE, known.client, client.round, client.stamp, known.mark)

    def _new(self, known: Membership, fresh: bool = False) -> Client:
        assert known.client is not None  # only members that have a number have a client
        weights = None if self.initial is None or fresh else self.initial(known.charter)
        return known.charter.new_client(known.client, weights)

    def _take_turn(self, turn: Turn, home: ClientState, work: Work) -> Message:
        known = Membership.read(home)
        if known is None:
            reason = f"this node knows of no federation {turn.federation!r}"
            return self._answer(Answer(messages.LOST, reason=reason))
        other = known.client != turn.client
        if other and known.client is not None and not turn.renamed:
            raise StoreError(
                f"the state of node {self.context.node_id} is client {known.client}'s, and this is"
                f" the turn of client {turn.client}: {SHARED}"
            )
        if other:
            known = replace(known, client=turn.client)
            known.write(home)
        fresh = turn.fresh or other
        with home.client(lambda: self._new(known, fresh), fresh=fresh) as client:
            try:
                if turn.data:
                    client.receive(turn.data)
                elif client.round < 0:
                    raise MissedRounds("this client has no weights yet", client.round)
            except (DecodeError, MissedRounds) as error:
                return self._lost(client, client.round, error)
            except RemoteProtocolError as error:
                # Another history: no round of it is of any use.
                return self._lost(client, -1, error)
            if not self.message.metadata.message_type.startswith("train"):
                return work(client, known.charter).reply
            if client.pending is not None:
                return self._send_again(home, client, client.pending)
            return self._train(home, client, work, known.charter)

    def _train(
        self, home: ClientState, client: ClientLike, work: Work, charter: FederationSpec
    ) -> Message:
        where = (client.client_id, client.round, client.stamp)
        try:
            worked = work(client, charter)
            if worked.delta is None:
                return worked.reply
            metrics = {name: dict(r) for name, r in worked.reply.content.metric_records.items()}
            kept = {"round": client.round, "stamp": client.stamp.hex(), "metrics": metrics}
            # Before the upload, which may have to be sent again, with them, by another process.
            home.take_note(_REPLY, json.dumps(kept))
            sent = client.send_delta(worked.delta, worked.moments)
            worked.on_sent(sent)
        except (Unusable, NonFiniteError) as error:
            log(ERROR, "fedtern: nothing is sent in round %s: %s", client.round, error)
            return self._answer(Answer(messages.FAILED, *where, reason=str(error)))
        return self._answer(Answer(messages.UPLOAD, *where, data=sent.data), metrics)

    def _send_again(self, home: ClientState, client: ClientLike, data: bytes) -> Message:
        """The upload of a round that the server asks for twice; it has been trained for once."""
        where = (client.client_id, client.round, client.stamp)
        try:
            kept = json.loads(home.note(_REPLY) or "")
            metrics = kept["metrics"]
            found = kept["round"], kept["stamp"]
        except (KeyError, TypeError, ValueError):
            found = None
        if found != (client.round, client.stamp.hex()):
            reason = "the metrics of the upload that this node made before are gone"
            return self._answer(Answer(messages.FAILED, *where, reason=reason))
        return self._answer(Answer(messages.UPLOAD, *where, data=data), metrics)

    def _lost(self, client: ClientLike, round: int, error: FedternError) -> Message:
        log(WARNING, "fedtern: cannot follow the server from round %s: %s", client.round, error)
        where = (client.client_id, round, client.stamp)
        return self._answer(Answer(messages.LOST, *where, reason=str(error)))

    def _refuse(self, reason: str) -> Message:
        log(ERROR, "fedtern: this node cannot work with the server: %s", reason)
        return self._answer(Answer(messages.REFUSED, reason=reason, version=__version__))

    def _answer(
        self, answer: Answer, metrics: Mapping[str, dict[str, MetricRecordValues]] | None = None
    ) -> Message:
        content = RecordDict({KEY: ConfigRecord({KEY: answer.to_bytes()})})
        for name, record in (metrics or {}).items():
            content[name] = MetricRecord(record)
        return Message(content, reply_to=self.message)
