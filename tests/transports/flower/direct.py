"""A grid whose nodes are in this process: real apps and messages, but no network."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedtern.transports.flower import compression
from fedtern.transports.flower.client_state import DirectoryClientState
from fedtern.transports.flower.federation_spec import FederationSpec

SHAPES = {"weight": (30, 10), "bias": (10,)}


def initial(value: float = 0.0) -> ArrayRecord:
    return ArrayRecord({n: Array(np.full(s, value, np.float32)) for n, s in SHAPES.items()})


def train(message: Message, context: Context) -> Message:
    """Take a step towards weights that differ from node to node."""
    number = int(context.node_config["partition-id"]) + 1
    changed = {}
    for name, array in message.content.array_records["arrays"].items():
        weights = array.numpy()
        target = np.linspace(-number, number, weights.size, dtype=np.float32)
        changed[name] = Array(weights + np.float32(0.3) * (target.reshape(weights.shape) - weights))
    metrics = MetricRecord({"num-examples": 10 * number, "loss": 1.0 / number})
    content = RecordDict({"arrays": ArrayRecord(changed), "metrics": metrics})
    return Message(content, reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    weights = message.content.array_records["arrays"]["bias"].numpy()
    metrics = MetricRecord({"num-examples": 1, "mean": float(weights.mean())})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def app(
    train: Callable[[Message, Context], Message] = train,
    evaluate: Callable[[Message, Context], Message] = evaluate,
    *,
    compressed: bool = True,
) -> ClientApp:
    made = ClientApp(mods=[compression()] if compressed else [])
    made.train()(train)
    made.evaluate()(evaluate)
    return made


class DirectGrid(Grid):
    """Calls the app of each node for every message to it; a node without an app never answers.

    Attributes:
        apps: The app of each node. Change it to let nodes join or leave.
        received: All messages to nodes, with the node of each.
        tamper: Changes the reply of a node on its way to the server.

    """

    def __init__(self, root: Path, apps: list[ClientApp | None]) -> None:
        self.root = root
        self.apps = {100 + i: made for i, made in enumerate(apps)}
        self.received: list[tuple[int, Message]] = []
        self.tamper: Callable[[int, Message], Message | None] = lambda _node, reply: reply
        self._run = Run.create_empty(7)
        # Flower sets these in the process of a server app.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 7, 1, 1

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(self, *_args: object, **_options: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def push_messages(self, messages: object) -> list[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: object) -> list[Message]:
        raise NotImplementedError

    def send_and_receive(
        self, messages: list[Message], *, timeout: float | None = None
    ) -> list[Message]:
        replies = []
        assert isinstance(messages, list)  # the grid of a deployment iterates over it twice
        for number, message in enumerate(messages):
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"{node}-{number}"
            self.received.append((node, copy.deepcopy(message)))
            if (reply := self.deliver(node, copy.deepcopy(message))) is not None:
                replies.append(reply)
        return replies

    def deliver(self, node: int, message: Message) -> Message | None:
        """Call the app of a node; return its reply, or None if there is none."""
        if (made := self.apps[node]) is None:
            return None
        config = {"partition-id": abs(node - 100), "num-partitions": len(self.apps)}
        config["fedtern-state"] = str(self.directory(node))
        context = Context(self._run.run_id, node, config, self.context_state(node), {})
        try:
            return self.tamper(node, made(message, context))
        except Exception as error:  # as a SuperNode does
            reply = Message(Error(2, f"Traceback ...\n{type(error)}: {error}"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1  # Flower's own id, not the node's
            return reply

    def context_state(self, node: int) -> RecordDict:
        """Return the state in a node's context: empty, because Flower may lose it at any time."""
        return RecordDict()

    def directory(self, node: int) -> Path:
        return self.root / f"node-{node}"

    def client_state(self, node: int) -> DirectoryClientState:
        (found,) = self.directory(node).glob("federation-*")
        return DirectoryClientState(found)

    def client_number(self, node: int) -> int:
        return json.loads(self.client_state(node).read_note("membership") or "")["client"]

    def weights(self, node: int) -> np.ndarray:
        """Return the weights in a node's directory."""
        return read_client(self.client_state(node))[1]


class DirectSimulation(DirectGrid):
    """The same grid as a simulation: the state in a node's context is kept."""

    def __init__(self, root: Path, apps: list[ClientApp | None]) -> None:
        super().__init__(root, apps)
        self._states = {node: RecordDict() for node in self.apps}

    def context_state(self, node: int) -> RecordDict:
        return self._states[node]


def read_spec(state: DirectoryClientState) -> FederationSpec:
    """Return the federation of a node's state."""
    return FederationSpec.from_json(json.loads(state.read_note("membership") or "")["charter"])


def read_client(state: DirectoryClientState) -> tuple[int, np.ndarray]:
    """Return round and weights of the client in a node's state."""
    number = json.loads(state.read_note("membership") or "")["client"]
    spec = read_spec(state)
    with state.locked(), state.client(lambda: spec.new_client(number)) as client:
        return client.round, np.array(client.weights)
