"""A server's side of the conversation, while a run lasts."""

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
from fedtern.transports.flower import messages
from fedtern.transports.flower.client_state import SHARED
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.messages import KEY, Answer, Hello, Turn
from fedtern.transports.flower.nodes import Member, NodeTable
from fedtern.transports.flower.run_totals import RunTotals

_NO_MOD = (
    "it does not answer a hello of fedtern: does its ClientApp have"
    " mods=[fedtern.transports.flower.compression()]?"
)


class Reply(NamedTuple):
    """What a node sent back: its frame, if there was one, in the message it came with."""

    node: int
    answer: Answer | None
    message: Message

    @property
    def content(self) -> RecordDict:
        """The frame, and whatever its app put beside it."""
        return self.message.content


class Taken(NamedTuple):
    """A reply whose upload counts in this round."""

    reply: Reply
    upload_bytes: int
    accepted: Accepted | None  # None if the server accepted this upload before a restart


class Session:
    """Knows where each client is, tells it what it missed, and hears what it has to say.

    Nothing that a node does, or leaves undone, is an error here: it is reported, and the round goes
    on without that node.
    """

    def __init__(
        self,
        charter: FederationSpec,
        server: ServerLike,
        ledger: RunTotals,
        grid: Grid,
        timeout: float,
    ) -> None:
        self.charter, self.server, self.ledger = charter, server, ledger
        self.grid, self.timeout = grid, timeout
        self.roster = NodeTable(ledger)
        self.dropped: list[str] = []  # why turns of this round came to nothing
        self.sizes: list[int] = []  # of what was sent last, in the order of nodes
        self._sent: dict[int, Message] = {}

    def turns(self, messages: Iterable[Message], config_key: str) -> list[Message]:
        """The messages of a strategy, with what each node missed in the place of the model."""
        messages = list(messages)
        nodes = [message.metadata.dst_node_id for message in messages]
        self.dropped += self.roster.refusals(nodes)
        self.greet(nodes)
        # A list: some of Flower's grids go through it twice.
        self._sent, self.sizes, taken = {}, [], dict[int, int]()
        for message in messages:
            node = message.metadata.dst_node_id
            if (member := self.roster.get(node)) is None:
                continue
            if (other := taken.setdefault(member.client, node)) != node:
                self.drop(node, f"{SHARED} (node {other} is that client)")
                continue
            turn = self._turn(member)
            self.sizes.append(len(turn.data))
            keys = (self.charter.arrays, config_key)
            self._sent[node] = _with_frame(message, *keys, turn.to_bytes())
        if self.sizes:
            self.ledger.counts.down.add(self.sizes, 0.0)
        return list(self._sent.values())

    def _turn(self, member: Member) -> Turn:
        server = self.server
        missed: CatchUp | None = None
        fresh = False
        if (member.round, member.stamp) != (server.round, server.stamp):
            # A client without weights, or with weights of another history, gets the model.
            fresh = not 0 <= member.round < server.round
            missed = server.download(member.client, -1 if fresh else member.round)
        data = b"" if missed is None else missed.data
        self.ledger.counts.models += missed is not None and missed.how is How.MODEL
        charter = self.charter
        name, here = charter.federation, charter.in_context
        return Turn(name, here, fresh, member.client, data, member.renamed)

    def greet(self, nodes: Iterable[int], hint: str = _NO_MOD) -> None:
        """Ask those of some nodes who they are and where, of which that is not known.

        The hint is for those whose app cannot answer that.
        """
        strangers = self.roster.strangers(nodes)
        if not strangers:
            return
        hello = Hello(__version__, self.charter.to_json()).to_bytes()
        self._sent = {
            node: Message(RecordDict({KEY: ConfigRecord({KEY: hello})}), node, MessageType.TRAIN)
            for node in strangers
        }
        replies = self.grid.send_and_receive(list(self._sent.values()), timeout=self.timeout)
        # In the order of nodes, so that the numbers they get do not depend on who is fastest.
        found = sorted(self.replies(replies, hint), key=_numbered_first)
        self.roster.expect(reply.answer for reply in found)
        for node, answer, _ in found:
            if answer is None:
                self.drop(node, hint or "it does not answer a hello")
            elif answer.kind == messages.HERE:
                self.roster.enter(node, answer)
                self.dropped += self.roster.refusals([node])
            else:
                self._send_away(node, answer)

    def replies(self, messages: Iterable[Message], hint: str = "") -> Iterator[Reply]:
        """What nodes have answered to the last messages; those that have not are reported.

        Where an app has failed, the report ends with the hint.
        """
        # An error that Flower itself reports does not come from the node it is about.
        nodes = {message.metadata.message_id: node for node, message in self._sent.items()}
        waiting = dict(self._sent)
        for message in messages:
            metadata = message.metadata
            node = nodes.get(metadata.reply_to_message_id, metadata.src_node_id)
            if waiting.pop(node, None) is None:
                log(WARNING, "fedtern: ignoring a message of node %s that nobody waits for", node)
                continue
            try:
                if message.has_error():
                    raise FedternError(_reason_of(message.error, hint))
                yield Reply(node, _answer_in(message.content), message)
            except FedternError as error:
                self.drop(node, format_error(error))
        for node in waiting:
            self.drop(node, f"no answer within {self.timeout:g} seconds")

    def drop(self, node: int, reason: str) -> None:
        """Go on without a node in this round."""
        self.dropped.append(f"{self.roster.name(node)}: {reason}")
        log(WARNING, "fedtern: going on without %s", self.dropped[-1])
        self.roster.lose(node)

    def take(self, reply: Reply, num_examples: int) -> Taken | None:
        """Take the upload in a reply; None, and a report, if the reply brings none."""
        node, answer, member = reply.node, reply.answer, self.roster.get(reply.node)
        if answer is None or member is None:
            self.drop(node, "it answers without an upload")
            return None
        if answer.kind != messages.UPLOAD or answer.client != member.client:
            self._send_away(node, answer)
            return None
        accepted: Accepted | None = None
        try:
            accepted = self.server.receive(member.client, answer.data, num_examples)
        except DuplicateUpload:
            pass  # accepted before a restart: it counts once
        except RemoteProtocolError as error:  # any other error is ours
            self.drop(node, format_error(error))
            return None
        member.is_at(answer.round, answer.stamp)
        return Taken(reply, len(answer.data), accepted)

    def evaluated(self, reply: Reply) -> bool:
        """Whether a node could evaluate the model, which it then has."""
        member = self.roster.get(reply.node)
        if reply.answer is not None or member is None:
            self._send_away(reply.node, reply.answer or Answer(messages.LOST))
            return False
        member.is_at(self.server.round, self.server.stamp)
        return True

    def _send_away(self, node: int, answer: Answer) -> None:
        """Go on without a node that has answered something else than was hoped for."""
        member = self.roster.get(node)
        if answer.kind == messages.REFUSED:
            self.dropped.append(answer.reason)
            self.roster.refuse(node, answer.reason)
            return
        out_of_place = f"an answer of kind {answer.kind} and client {answer.client} is out of place"
        self.drop(node, answer.reason or out_of_place)
        if member is not None and member.client == answer.client and answer.reason:
            self.roster.enter(node, answer)  # it has said where it is


def _with_frame(message: Message, model_key: str, config_key: str, frame: bytes) -> Message:
    """A message of its own for one node: a strategy gives the same content to all of them."""
    content = RecordDict({name: r for name, r in message.content.items() if name != model_key})
    config = dict(message.content.config_records.get(config_key, {}))
    content[config_key] = ConfigRecord({**config, KEY: frame})
    metadata = message.metadata
    return Message(
        content,
        metadata.dst_node_id,
        metadata.message_type,
        ttl=metadata.ttl,
        group_id=metadata.group_id,
    )


def _numbered_first(reply: Reply) -> tuple[bool, int]:
    """Nodes that have a number come before those that are given one that is not taken."""
    return reply.answer is None or reply.answer.client is None, reply.node


def _answer_in(content: RecordDict) -> Answer | None:
    record = content.config_records.get(KEY)
    data = None if record is None else record.get(KEY)
    return messages.read_answer(data) if isinstance(data, bytes) else None


def _reason_of(error: Error, hint: str) -> str:
    """The last line of a traceback, which says most."""
    lines = (error.reason or "").strip().splitlines() or ["no reason given"]
    raised = error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return f"{lines[-1]} ({hint})" if hint and raised else lines[-1]
