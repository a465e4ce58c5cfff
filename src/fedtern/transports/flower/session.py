"""The server's side of the exchange, for the duration of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from logging import WARNING
from typing import NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedtern import __version__
from fedtern.core.errors import (
    DuplicateUpload,
    FedternError,
    LocalProtocolError,
    RemoteProtocolError,
    format_error,
)
from fedtern.core.protocol import Accepted, CatchUp, How
from fedtern.federation.interfaces import ServerLike
from fedtern.runs.status import MOST_CLIENTS, RUNNING, Clients, Lag
from fedtern.transports.flower.arrays import are_equal, nbytes_of
from fedtern.transports.flower.client_state import SHARED_DIRECTORY
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.messages import (
    ATTACHMENT,
    KEY,
    Answer,
    AnswerKind,
    Handshake,
    RoundRequest,
    is_long,
    make_attachment,
    read_answer,
    take_attachment,
)
from fedtern.transports.flower.nodes import Member, NodeTable
from fedtern.transports.flower.run_totals import RunTotals

_NO_MOD = (
    "no answer to the handshake of fedtern: does its ClientApp have"
    " mods=[fedtern.transports.flower.compression()]? List it before all other mods"
)
_NOT_FIRST = "list compression() before all other mods: mods=[compression(), ...]"
# Errors that will happen again, in contrast to a node that is away for a while.
_LASTING_ERRORS = (
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION,
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    ErrorCode.MOD_FAILED_PRECONDITION,
    ErrorCode.INVALID_FAB,
)


class Requests(NamedTuple):
    """The messages of a round.

    Attributes:
        messages: Messages for the nodes that can take part.
        sizes: Bytes of the broadcast or catch-up in each of them, and of further arrays.

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
        accepted: The server's result; None if it had accepted the upload before a restart.

    """

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
        self._cohort = 0  # number of nodes of the last requests
        self._dropped_before = 0  # in earlier rounds of this process
        self._lasting: list[str] = []  # those whose reasons will not go away by themselves
        self._sent: dict[int, Message] = {}  # the last message to each node
        self._attachments: list[tuple[bytes, ArrayRecord]] = []  # of the last messages
        self._model: CatchUp | None = None  # for clients without weights, while requests are made
        self._logged_arrays: set[str] = set()

    def start_round(self) -> None:
        """Start a new list of dropped nodes."""
        self._dropped_before += len(self.dropped)
        self.dropped = []
        self._lasting = []

    def write_status(self, state: str = RUNNING) -> None:
        """Write the state of the round to the store, for the live page.

        Args:
            state: ``RUNNING``, ``STOPPED`` or ``FINISHED``.

        """
        server = self.server
        lags = sorted(
            (Lag(member.client, server.round - member.round) for member in self.nodes.members),
            key=lambda lag: -lag.rounds,
        )
        dropped = self._dropped_before + len(self.dropped)
        clients = Clients(
            total=self.totals.counts.clients,
            cohort=self._cohort,
            present=len(self.nodes.members),
            behind=[lag for lag in lags[:MOST_CLIENTS] if 1 < lag.rounds <= server.round],
            refused={"dropped nodes": dropped} if dropped else {},
        )
        self.totals.write_status(server.round, self.spec, clients, state)

    def requests(
        self,
        messages: Iterable[Message],
        config_key: str = "config",
        model: ArrayRecord | None = None,
    ) -> Requests:
        """Replace the model in a strategy's messages by the rounds that each node missed.

        Nodes whose position is not known are asked for it first. A message without the model is
        sent as it is.

        Args:
            messages: The messages of the strategy, one per node.
            config_key: Key of the record for the request.
            model: The model in the messages; None if they have none, and every node gets it.

        Returns:
            Messages for the nodes that can take part.

        Raises:
            LocalProtocolError: A message has other arrays in the place of the model.

        """
        messages = list(messages)
        model_keys = [self._find_model(message, model) for message in messages]
        with_model = {
            message.metadata.dst_node_id: message
            for message, key in zip(messages, model_keys, strict=True)
            if key is not None
        }
        self.dropped += self.nodes.exclusions(with_model)
        self._lasting += self.nodes.exclusions(with_model)
        self.handshake(with_model, messages=with_model)
        self._sent = {}
        sizes: list[int] = []
        node_of: dict[int, int] = {}  # the node of each client in this round
        for message, model_key in zip(messages, model_keys, strict=True):
            node = message.metadata.dst_node_id
            if model_key is None:
                sizes.append(self.count_arrays(message.content, "a request"))
                self._sent[node] = message
                continue
            if (member := self.nodes.get(node)) is None:
                continue
            if (other := node_of.setdefault(member.client, node)) != node:
                self.drop(node, f"{SHARED_DIRECTORY} (node {other} has this client)")
                continue
            request = replace(self._request(member), arrays_key=model_key)
            content = RecordDict({n: r for n, r in message.content.items() if n != model_key})
            sizes.append(len(request.data) + self.count_arrays(content, "a request"))
            self._sent[node] = self._with_request(message, content, request, config_key)
        if sizes:
            self.totals.counts.down.add(sizes, 0.0)
        self._attachments = []
        self._model = None
        self._cohort = len(self._sent) or self._cohort
        return Requests(list(self._sent.values()), sizes)

    def _find_model(self, message: Message, model: ArrayRecord | None) -> str | None:
        """Return the key of the model in a strategy's message; None if it has none."""
        if model is None:
            return self.spec.arrays_key
        records = message.content.array_records
        default = records.get(self.spec.arrays_key)
        if default is not None and are_equal(default, model):
            return self.spec.arrays_key
        fitting = [key for key, record in records.items() if set(record) == set(model)]
        for key in fitting:
            if are_equal(records[key], model):
                return key
        if fitting:
            raise LocalProtocolError(
                f"the strategy sends node {message.metadata.dst_node_id} arrays {fitting[0]!r} that"
                " differ from the global model; Compressed can send only the global model, so use"
                " this strategy without compression"
            )
        return None

    def _with_request(
        self, message: Message, content: RecordDict, request: RoundRequest, config_key: str
    ) -> Message:
        """Return a message with a request instead of the model.

        It is a new message: a strategy uses the same content for all nodes.
        """
        if is_long(request.data):
            # Nodes that receive the same data share one object, which Flower stores once.
            shared = (record for data, record in self._attachments if data is request.data)
            if (attachment := next(shared, None)) is None:
                attachment = make_attachment(request.data)
                self._attachments.append((request.data, attachment))
            content[ATTACHMENT] = attachment
            request = replace(request, data=b"", attached=True)
        return _readdress(message, _add_request(content, config_key, request.to_bytes()))

    def count_arrays(self, content: RecordDict, where: str) -> int:
        """Return the bytes of the arrays in a message beside the model, and log them once."""
        total = 0
        for name, record in content.array_records.items():
            if name == ATTACHMENT:
                continue
            nbytes = nbytes_of(record)
            total += nbytes
            if name not in self._logged_arrays:
                self._logged_arrays.add(name)
                log(
                    WARNING,
                    "fedtern: the arrays %r in %s are not compressed: %.3f MB per message, counted"
                    " in the payload",
                    name,
                    where,
                    nbytes / 1e6,
                )
        return total

    def _request(self, member: Member) -> RoundRequest:
        server = self.server
        missed: CatchUp | None = None
        discard_state = False
        if (member.round, member.stamp) != (server.round, server.stamp):
            # A client without weights, or with weights of another history, gets the model.
            discard_state = not 0 <= member.round < server.round
            try:
                missed = self._download(member.client, -1 if discard_state else member.round)
            except RemoteProtocolError as error:
                log(WARNING, "fedtern: %s; the client starts again without its residual", error)
                discard_state = True
                missed = self._download(member.client, -1)
            self.totals.counts.models += missed.how in (How.MODEL, How.START)
        return RoundRequest(
            federation=self.spec.federation,
            in_context=self.spec.in_context,
            discard_state=discard_state,
            client=member.client,
            data=b"" if missed is None else missed.data,
            renumbered=member.renumbered,
        )

    def _download(self, client: int, since: int) -> CatchUp:
        """Like ``download`` of the server, but make the message for new clients only once."""
        if since >= 0:
            return self.server.download(client, since)
        if self._model is None:
            self._model = self.server.first_download()
        return self._model

    def handshake(
        self,
        nodes: Iterable[int],
        hint: str = _NO_MOD,
        messages: Mapping[int, Message] | None = None,
    ) -> None:
        """Ask those nodes for their client and its position for which these are not known.

        Args:
            nodes: Ids of nodes.
            hint: Added to the log line about a node whose app cannot answer.
            messages: The strategy's message to each node. The handshake has their type and all
                their records but arrays, because other mods may read these.

        """
        unknown = self.nodes.unknown(nodes)
        if not unknown:
            return
        data = Handshake(__version__, self.spec.to_json()).to_bytes()
        self._sent = {}
        for node in unknown:
            given = (messages or {}).get(node)
            if given is None:
                content = RecordDict({KEY: ConfigRecord({KEY: data})})
                self._sent[node] = Message(content, node, MessageType.TRAIN)
            else:
                content = RecordDict(dict(given.content))
                for name in given.content.array_records:
                    del content[name]
                self._sent[node] = _readdress(given, _add_request(content, "config", data))
        received = self.grid.send_and_receive(list(self._sent.values()), timeout=self.timeout)
        # Sorted, so that the numbers of new clients do not depend on which node is fastest.
        replies = sorted(self.replies(received, hint), key=_numbered_first)
        self.nodes.reserve_numbers(reply.answer for reply in replies)
        for node, answer, _ in replies:
            if answer is None:
                self.drop(node, hint or "no answer to the handshake", lasting=True)
            elif answer.kind is AnswerKind.STATUS:
                self.nodes.add(node, answer)
                self.dropped += self.nodes.exclusions([node])
                self._lasting += self.nodes.exclusions([node])
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
        waiting = set(self._sent)
        self._sent = {}  # the messages may be as large as a model
        for message in messages:
            metadata = message.metadata
            node = nodes.get(metadata.reply_to_message_id, metadata.src_node_id)
            if node not in waiting:
                log(WARNING, "fedtern: ignoring an unexpected message from node %s", node)
                continue
            waiting.remove(node)
            try:
                if message.has_error():
                    lasting = message.error.code in _LASTING_ERRORS
                    self.drop(node, _format_flower_error(message.error, hint), lasting=lasting)
                else:
                    yield Reply(node, _find_answer(message.content), message)
            except FedternError as error:
                self.drop(node, format_error(error), lasting=True)
        for node in sorted(waiting):
            self.drop(node, f"no answer within {self.timeout:g} seconds")

    def drop(self, node: int, reason: str, *, lasting: bool = False) -> None:
        """Continue this round without a node.

        Args:
            node: Id of the node.
            reason: Reason for the log.
            lasting: Whether the reason will not go away by itself.

        """
        self.dropped.append(f"{self.nodes.describe(node)}: {reason}")
        if lasting:
            self._lasting.append(self.dropped[-1])
        log(WARNING, "fedtern: continuing without %s", self.dropped[-1])
        self.nodes.forget(node)

    def lasting_failure(self) -> str | None:
        """Return the first failure of this round that will not go away by itself."""
        return self._lasting[0] if self._lasting else None

    def accept_upload(self, reply: Reply, num_examples: float) -> CountedUpload | None:
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
            self.drop(node, "its reply has no upload", lasting=True)
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
        return CountedUpload(accepted)

    def upload_nbytes(self, reply: Reply) -> int:
        """Return the size of the upload in a reply and of its further arrays; 0 without one."""
        answer = reply.answer
        if answer is None or answer.kind is not AnswerKind.UPLOAD:
            return 0
        return len(answer.data) + self.count_arrays(reply.content, "replies of train functions")

    def accept_evaluation(self, reply: Reply) -> bool:
        """Return whether a node has evaluated the newest model; drop it if it has not."""
        member = self.nodes.get(reply.node)
        kind = None if reply.answer is None else reply.answer.kind
        if kind not in (None, AnswerKind.EVALUATED) or member is None:
            self._drop_for(reply.node, reply.answer or Answer(AnswerKind.NOT_READY))
            return False
        member.moved_to(self.server.round, self.server.stamp)
        return True

    def _drop_for(self, node: int, answer: Answer) -> None:
        """Continue without a node, because of its answer."""
        member = self.nodes.get(node)
        if answer.kind is AnswerKind.REFUSED:
            self.dropped.append(answer.reason)
            self._lasting.append(answer.reason)
            self.nodes.exclude(node, answer.reason)
            return
        unexpected = f"unexpected answer of kind {answer.kind:d} and client {answer.client}"
        self.drop(node, answer.reason or unexpected, lasting=answer.kind is AnswerKind.FAILED)
        if member is not None and member.client == answer.client and answer.reason:
            self.nodes.add(node, answer)  # the answer has the client's position


def _add_request(content: RecordDict, config_key: str, data: bytes) -> RecordDict:
    """Add a request to a record of the configuration, or in a record of its own.

    Every object in a message is one more HTTP request, so an existing record is better.
    """
    records = content.config_records
    key = config_key if config_key in records else next(iter(records), KEY)
    content[key] = ConfigRecord({**records.get(key, {}), KEY: data})
    return content


def _readdress(message: Message, content: RecordDict) -> Message:
    """Return a new message to the same node, with another content."""
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
    if not isinstance(data, bytes):
        return None
    answer = read_answer(data)
    return replace(answer, data=take_attachment(content)) if answer.attached else answer


def _format_flower_error(error: Error, hint: str) -> str:
    """Return the last line of a traceback, which names the exception."""
    lines = (error.reason or "").strip().splitlines() or ["no reason given"]
    if error.code == ErrorCode.MOD_FAILED_PRECONDITION:
        return f"{lines[-1]} ({_NOT_FIRST})"
    raised = error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return f"{lines[-1]} ({hint})" if hint and raised else lines[-1]
