"""The server's side of the exchange, for the duration of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from logging import WARNING
from typing import NamedTuple

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedtern import __version__
from fedtern.core.errors import DuplicateUpload, FedternError, RemoteProtocolError, format_error
from fedtern.core.protocol import Accepted, CatchUp, How
from fedtern.federation.interfaces import ServerLike
from fedtern.transports.flower.client_state import SHARED_DIRECTORY
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.messages import (
    KEY,
    Answer,
    AnswerKind,
    Handshake,
    RoundRequest,
    read_answer,
)
from fedtern.transports.flower.nodes import Member, NodeTable
from fedtern.transports.flower.run_totals import RunTotals

_NO_MOD = (
    "no answer to the handshake of fedtern: does its ClientApp have"
    " mods=[fedtern.transports.flower.compression()]?"
)


class Requests(NamedTuple):
    """The messages of a round.

    Attributes:
        messages: Messages for the nodes that can take part.
        sizes: Bytes of the broadcast or catch-up in each of them.

    """

    messages: list[Message]
    sizes: list[int]


class Reply(NamedTuple):
    """The reply of a node.

    Attributes:
        node: Id of the node.
        answer: The answer in the message; None if it has none.
        message: The message, with the metrics of the app.

    """

    node: int
    answer: Answer | None
    message: Message

    @property
    def content(self) -> RecordDict:
        """All records of the message."""
        return self.message.content


class CountedUpload(NamedTuple):
    """An upload that counts in this round.

    Attributes:
        nbytes: Size of the upload.
        accepted: The server's result; None if it had accepted the upload before a restart.

    """

    nbytes: int
    accepted: Accepted | None


class Session:
    """Knows the position of each client, sends requests and reads the replies.

    A node that fails does not raise an exception here: the failure is logged, and the round
    continues without the node.

    Args:
        spec: The federation.
        server: The server.
        totals: Counters of the federation.
        grid: Flower's connection to the nodes.
        timeout: Seconds to wait for the replies to a handshake.

    """

    def __init__(
        self,
        spec: FederationSpec,
        server: ServerLike,
        totals: RunTotals,
        grid: Grid,
        timeout: float,
    ) -> None:
        self.spec = spec
        self.server = server
        self.totals = totals
        self.grid = grid
        self.timeout = timeout
        self.nodes = NodeTable(totals)
        self.dropped: list[str] = []  # nodes without which this round continues, with reasons
        self._sent: dict[int, Message] = {}  # the last message to each node

    def start_round(self) -> None:
        """Start a new list of dropped nodes."""
        self.dropped = []

    def requests(self, messages: Iterable[Message], config_key: str) -> Requests:
        """Replace the model in a strategy's messages by the rounds that each node missed.

        Nodes whose position is not known are asked for it first.

        Args:
            messages: The messages of the strategy, one per node.
            config_key: Key of the record for the request.

        Returns:
            Messages for the nodes that can take part.

        """
        messages = list(messages)
        chosen = [message.metadata.dst_node_id for message in messages]
        self.dropped += self.nodes.exclusions(chosen)
        self.handshake(chosen)
        self._sent = {}
        sizes: list[int] = []
        node_of: dict[int, int] = {}  # the node of each client in this round
        for message in messages:
            node = message.metadata.dst_node_id
            if (member := self.nodes.get(node)) is None:
                continue
            if (other := node_of.setdefault(member.client, node)) != node:
                self.drop(node, f"{SHARED_DIRECTORY} (node {other} has this client)")
                continue
            request = self._request(member)
            sizes.append(len(request.data))
            keys = (self.spec.arrays_key, config_key)
            self._sent[node] = _replace_model(message, *keys, request.to_bytes())
        if sizes:
            self.totals.counts.down.add(sizes, 0.0)
        return Requests(list(self._sent.values()), sizes)

    def _request(self, member: Member) -> RoundRequest:
        server = self.server
        missed: CatchUp | None = None
        discard_state = False
        if (member.round, member.stamp) != (server.round, server.stamp):
            # A client without weights, or with weights of another history, gets the model.
            discard_state = not 0 <= member.round < server.round
            missed = server.download(member.client, -1 if discard_state else member.round)
            self.totals.counts.models += missed.how is How.MODEL
        return RoundRequest(
            federation=self.spec.federation,
            in_context=self.spec.in_context,
            discard_state=discard_state,
            client=member.client,
            data=b"" if missed is None else missed.data,
            renumbered=member.renumbered,
        )

    def handshake(self, nodes: Iterable[int], hint: str = _NO_MOD) -> None:
        """Ask those nodes for their client and its position for which these are not known.

        Args:
            nodes: Ids of nodes.
            hint: Added to the log line about a node whose app cannot answer.

        """
        unknown = self.nodes.unknown(nodes)
        if not unknown:
            return
        data = Handshake(__version__, self.spec.to_json()).to_bytes()
        self._sent = {
            node: Message(RecordDict({KEY: ConfigRecord({KEY: data})}), node, MessageType.TRAIN)
            for node in unknown
        }
        received = self.grid.send_and_receive(list(self._sent.values()), timeout=self.timeout)
        # Sorted, so that the numbers of new clients do not depend on which node is fastest.
        replies = sorted(self.replies(received, hint), key=_numbered_first)
        self.nodes.reserve_numbers(reply.answer for reply in replies)
        for node, answer, _ in replies:
            if answer is None:
                self.drop(node, hint or "no answer to the handshake")
            elif answer.kind is AnswerKind.STATUS:
                self.nodes.add(node, answer)
                self.dropped += self.nodes.exclusions([node])
            else:
                self._drop_for(node, answer)

    def replies(self, messages: Iterable[Message], hint: str = "") -> Iterator[Reply]:
        """Yield the replies to the last requests, and drop the nodes without a usable reply.

        Args:
            messages: The messages that Flower returned.
            hint: Added to the log line about a node whose app failed.

        """
        # By the id of the request: Flower reports errors under an id of its own, not the node's.
        nodes = {message.metadata.message_id: node for node, message in self._sent.items()}
        waiting = dict(self._sent)
        for message in messages:
            metadata = message.metadata
            node = nodes.get(metadata.reply_to_message_id, metadata.src_node_id)
            if waiting.pop(node, None) is None:
                log(WARNING, "fedtern: ignoring an unexpected message from node %s", node)
                continue
            try:
                if message.has_error():
                    raise FedternError(_format_flower_error(message.error, hint))
                yield Reply(node, _find_answer(message.content), message)
            except FedternError as error:
                self.drop(node, format_error(error))
        for node in waiting:
            self.drop(node, f"no answer within {self.timeout:g} seconds")

    def drop(self, node: int, reason: str) -> None:
        """Continue this round without a node."""
        self.dropped.append(f"{self.nodes.describe(node)}: {reason}")
        log(WARNING, "fedtern: continuing without %s", self.dropped[-1])
        self.nodes.forget(node)

    def accept_upload(self, reply: Reply, num_examples: int) -> CountedUpload | None:
        """Pass the upload in a reply to the server.

        Args:
            reply: The reply of a node.
            num_examples: Number of examples that the client trained on.

        Returns:
            The upload; None, and the node is dropped, if the reply has none or the server refuses
            it.

        Raises:
            FedternError: The server failed, which is not the fault of the node.

        """
        node = reply.node
        answer = reply.answer
        member = self.nodes.get(node)
        if answer is None or member is None:
            self.drop(node, "its reply has no upload")
            return None
        if answer.kind is not AnswerKind.UPLOAD or answer.client != member.client:
            self._drop_for(node, answer)
            return None
        accepted: Accepted | None = None
        try:
            accepted = self.server.receive(member.client, answer.data, num_examples)
        except DuplicateUpload:
            pass  # accepted before a restart of the server; it counts once
        except RemoteProtocolError as error:
            self.drop(node, format_error(error))
            return None
        member.moved_to(answer.round, answer.stamp)
        return CountedUpload(len(answer.data), accepted)

    def accept_evaluation(self, reply: Reply) -> bool:
        """Return whether a node has evaluated the newest model; drop it if it has not."""
        member = self.nodes.get(reply.node)
        if reply.answer is not None or member is None:
            self._drop_for(reply.node, reply.answer or Answer(AnswerKind.NOT_READY))
            return False
        member.moved_to(self.server.round, self.server.stamp)
        return True

    def _drop_for(self, node: int, answer: Answer) -> None:
        """Continue without a node, because of its answer."""
        member = self.nodes.get(node)
        if answer.kind is AnswerKind.REFUSED:
            self.dropped.append(answer.reason)
            self.nodes.exclude(node, answer.reason)
            return
        unexpected = f"unexpected answer of kind {answer.kind:d} and client {answer.client}"
        self.drop(node, answer.reason or unexpected)
        if member is not None and member.client == answer.client and answer.reason:
            self.nodes.add(node, answer)  # the answer has the client's position


def _replace_model(message: Message, model_key: str, config_key: str, request: bytes) -> Message:
    """Return a message with a request instead of the model.

    It is a new message: a strategy uses the same content for all nodes.
    """
    content = RecordDict({name: r for name, r in message.content.items() if name != model_key})
    config = dict(message.content.config_records.get(config_key, {}))
    content[config_key] = ConfigRecord({**config, KEY: request})
    metadata = message.metadata
    return Message(
        content,
        metadata.dst_node_id,
        metadata.message_type,
        ttl=metadata.ttl,
        group_id=metadata.group_id,
    )


def _numbered_first(reply: Reply) -> tuple[bool, int]:
    """Sort clients with a number before those that need one, so that no number is used twice."""
    return reply.answer is None or reply.answer.client is None, reply.node


def _find_answer(content: RecordDict) -> Answer | None:
    record = content.config_records.get(KEY)
    data = None if record is None else record.get(KEY)
    return read_answer(data) if isinstance(data, bytes) else None


def _format_flower_error(error: Error, hint: str) -> str:
    """Return the last line of a traceback, which names the exception."""
    lines = (error.reason or "").strip().splitlines() or ["no reason given"]
    raised = error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return f"{lines[-1]} ({hint})" if hint and raised else lines[-1]
