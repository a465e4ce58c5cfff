"""A grid whose nodes live in this process: real apps, real messages, no network."""

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
    """A step towards numbers that no other node wants."""
    number = int(context.node_config["partition-id"]) + 1
    changed = {}
    for name, array in message.content.array_records["arrays"].items():
        weights = array.numpy()
        aims = np.linspace(-number, number, weights.size, dtype=np.float32).reshape(weights.shape)
        changed[name] = Array(weights + np.float32(0.3) * (aims - weights))
    metrics = MetricRecord({"num-examples": 10 * number, "loss": 1.0 / number})
    content = RecordDict({"arrays": ArrayRecord(changed), "metrics": metrics})
    return Message(content, reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    weights = message.content.array_records["arrays"]["bias"].numpy()
    metrics = MetricRecord({"num-examples": 1, "mean": float(weights.mean())})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def app(
    train: Callable[[Message, Context], Message] = train, *, compressed: bool = True
) -> ClientApp:
    made = ClientApp(mods=[compression()] if compressed else [])
    made.train()(train)
    made.evaluate()(evaluate)
    return made


class DirectGrid(Grid):
    """Runs the app of each node as messages for it come; one without an app never answers."""

    def __init__(self, root: Path, apps: list[ClientApp | None]) -> None:
        self.root = root
        self.apps = {100 + i: made for i, made in enumerate(apps)}
        self.received: list[tuple[int, Message]] = []
        self.tamper: Callable[[int, Message], Message | None] = lambda _node, reply: reply
        self._run = Run.create_empty(7)
        # What Flower says of the process that an app of the server runs in.
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
        assert isinstance(messages, list)  # the grid of a deployment goes through it twice
        for number, message in enumerate(messages):
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"{node}-{number}"
            self.received.append((node, copy.deepcopy(message)))
            if (reply := self._reply(node, copy.deepcopy(message))) is not None:
                replies.append(reply)
        return replies

    def _reply(self, node: int, message: Message) -> Message | None:
        if (made := self.apps[node]) is None:
            return None
        config = {"partition-id": abs(node - 100), "num-partitions": len(self.apps)}
        config["fedtern-state"] = str(self.directory(node))
        context = Context(self._run.run_id, node, config, self.state(node), {})
        try:
            return self.tamper(node, made(message, context))
        except Exception as error:  # as a SuperNode does
            reply = Message(Error(2, f"Traceback ...\n{type(error)}: {error}"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1  # Flower's own, not the node's
            return reply

    def state(self, node: int) -> RecordDict:
        """What Flower keeps for a node: nothing that could be relied on."""
        return RecordDict()

    def directory(self, node: int) -> Path:
        return self.root / f"node-{node}"

    def home(self, node: int) -> DirectoryClientState:
        (found,) = self.directory(node).glob("federation-*")
        return DirectoryClientState(found)

    def weights(self, node: int) -> np.ndarray:
        """What a node's state has on disk."""
        home = self.home(node)
        noted = json.loads(home.note("membership") or "")
        charter = FederationSpec.from_json(noted["charter"])
        make = lambda: charter.new_client(noted["client"])  # noqa: E731
        with home.alone(), home.client(make) as client:
            return np.array(client.weights)


class DirectSimulation(DirectGrid):
    """The same as a simulation: what is in a node's context stays there."""

    def __init__(self, root: Path, apps: list[ClientApp | None]) -> None:
        super().__init__(root, apps)
        self._states = {node: RecordDict() for node in self.apps}

    def state(self, node: int) -> RecordDict:
        return self._states[node]
