"""Messages of real training runs, kept in `benchmarks/messages`.

`python benchmarks/captured.py --data-dir DATA` trains each task with the paper's environment (100
clients, 10 of them in every round, p = 1/400) for 450 rounds and writes some of its messages: 16
uploads from the whole run and the last 120 broadcasts. It prints the mean sizes over all messages
of the run, beside those of the same updates with Golomb-coded positions. VGG11* takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtern import Environment, Layout, Server, stc
from fedtern.core.codecs import TernaryCodec
from fedtern.core.protocol.events import Accepted
from fedtern.core.protocol.messages import Broadcast, Upload
from fedtern.core.protocol.terms import Terms
from fedtern.core.updates import Steps, Ternary, Update

FOLDER = Path(__file__).with_name("messages")
TASKS = ("logistic-mnist", "cnn-kws", "lstm-fashion", "vgg11s-cifar10")
ROUNDS = 450
UPLOADS = 16
BROADCASTS = 120


@dataclass(frozen=True)
class Message:
    """A message, its update, and the size that it has with Golomb-coded positions.

    ``payload_bytes`` is the size of the update in the message.
    """

    data: bytes
    update: Ternary
    payload_bytes: int
    golomb_bytes: int


@dataclass(frozen=True)
class Captured:
    """Uploads and consecutive broadcasts of a run."""

    terms: Terms
    uploads: list[Message]
    broadcasts: list[Message]
    steps: list[Steps]  # the updates in the broadcasts


def as_ternary(update: Update) -> Ternary:
    """Convert steps, all of the same magnitude, to the ternary update with the same changes."""
    if isinstance(update, Ternary):
        return update
    assert isinstance(update, Steps)
    assert update.largest == 1
    assert update.ends is None
    mu = np.ldexp(np.ones(1, np.float32), update.exponents)
    return Ternary(update.size, update.indices, update.steps > 0, mu)


def open_upload(data: bytes, terms: Terms) -> Message:
    update = as_ternary(Upload.open(data, terms).update)
    payload = len(terms.method.up.codec.encode(update, terms.layout))
    return _beside_golomb(data, update, payload, terms)


def open_broadcast(data: bytes, terms: Terms) -> tuple[Message, Steps]:
    update = Broadcast.open(data, terms).update
    assert isinstance(update, Steps)
    payload = len(terms.method.down.codec.encode(update, terms.layout))
    return _beside_golomb(data, as_ternary(update), payload, terms), update


def _beside_golomb(data: bytes, update: Ternary, payload: int, terms: Terms) -> Message:
    golomb = len(TernaryCodec().encode(update, terms.layout))
    return Message(data, update, payload, len(data) - payload + golomb)


def load(task: str) -> Captured:
    """Read the messages of a task."""
    with np.load(FOLDER / f"{task}.npz") as file:
        layout = json.loads(file["layout"].tobytes())
        uploads = _split(file["uploads"], file["upload_ends"])
        broadcasts = _split(file["broadcasts"], file["broadcast_ends"])
    names, shapes = layout["names"], layout["shapes"]
    terms = Terms(Layout(tuple(names), tuple(map(tuple, shapes))), method())
    opened = [open_broadcast(data, terms) for data in broadcasts]
    return Captured(
        terms,
        [open_upload(data, terms) for data in uploads],
        [message for message, _ in opened],
        [steps for _, steps in opened],
    )


def method() -> Any:
    """STC with adaptively coded positions, and powers of two as magnitudes of broadcasts."""
    return stc(p_up=1 / 400, p_down=1 / 400, codec="adaptive", magnitudes="powers")


def _split(data: np.ndarray, ends: np.ndarray) -> list[bytes]:
    return [part.tobytes() for part in np.split(data, ends[:-1])]


def _joined(messages: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([len(data) for data in messages])
    return np.frombuffer(b"".join(messages), np.uint8), ends


def write(task: str, layout: Layout, uploads: Sequence[bytes], broadcasts: Sequence[bytes]) -> Path:
    """Write some of a run's messages."""
    described = json.dumps({"names": layout.names, "shapes": layout.shapes}).encode()
    kept = [uploads[i] for i in np.linspace(0, len(uploads) - 1, UPLOADS).astype(int)]
    upload_data, upload_ends = _joined(kept)
    broadcast_data, broadcast_ends = _joined(broadcasts[-BROADCASTS:])
    path = FOLDER / f"{task}.npz"
    np.savez(
        path,
        layout=np.frombuffer(described, np.uint8),
        uploads=upload_data,
        upload_ends=upload_ends,
        broadcasts=broadcast_data,
        broadcast_ends=broadcast_ends,
    )
    return path


class RecordingServer(Server):
    """A server that keeps every message."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.received: list[bytes] = []
        self.sent: list[bytes] = []

    def receive(self, client_id: int, data: bytes, num_examples: float = 1) -> Accepted:
        self.received.append(data)
        return super().receive(client_id, data, num_examples)

    def finish_round(self, *arguments: Any, **options: Any) -> Broadcast:
        broadcast = super().finish_round(*arguments, **options)
        self.sent.append(broadcast.data)
        return broadcast


def capture(task_name: str, rounds: int) -> dict[str, object]:
    """Train a task, write some of its messages and return the mean sizes of all of them."""
    import tasks  # needs torch
    from fedtern.data.hyperparameters import Sgd
    from fedtern.transports.local.federation import Federation
    from fedtern.transports.local.simulation import federate

    class Recording(Federation):
        def __init__(self, model: Any, *arguments: Any, seed: int, **options: Any) -> None:
            super().__init__(model, *arguments, seed=seed, **options)
            terms = self.server.terms
            self.server: RecordingServer = RecordingServer(
                model.weights, terms.method, terms.layout, seed=seed, carried=model.carried
            )

    task, dataset, remark = tasks.load(task_name)
    if remark:
        raise SystemExit(f"{task_name}: {remark}; give the folder of the datasets as --data-dir")
    sgd = Sgd(task.learning_rate, task.momentum, task.weight_decay)
    federation = federate(task, dataset, method(), Environment(), sgd, seed=0, make=Recording)
    with closing(federation):
        for _ in range(rounds):
            federation.step()
        server = federation.server
        assert isinstance(server, RecordingServer)
        terms = server.terms
        path = write(task_name, terms.layout, server.received, server.sent)
        missed_all = len(server.catch_up(0, since=0).data)
        whole = len(server.catch_up(0, since=-1).data)
    up = [open_upload(data, terms) for data in server.received[::10]]
    down = [open_broadcast(data, terms)[0] for data in server.sent]
    return {
        "task": task_name,
        "rounds": rounds,
        "up": _means(up),
        "down": _means(down),
        "since_the_initial_model": missed_all,
        "whole_model": whole,
        "file": f"{path.name}, {path.stat().st_size:,} bytes",
    }


def _means(messages: Iterable[Message]) -> dict[str, float]:
    """Mean sizes, and the mean of the ratios."""
    pairs = [(len(message.data), message.golomb_bytes) for message in messages]
    ours, golomb = zip(*pairs, strict=True)
    return {
        "bytes": round(statistics.mean(ours), 1),
        "golomb": round(statistics.mean(golomb), 1),
        "ratio": round(statistics.mean(a / b for a, b in pairs), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(TASKS), metavar="TASK")
    parser.add_argument("--data-dir", help="folder of the datasets; default: FEDTERN_DATA")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if options.data_dir:
        os.environ["FEDTERN_DATA"] = options.data_dir
    FOLDER.mkdir(exist_ok=True)
    for task in options.tasks:
        print(json.dumps(capture(task, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
