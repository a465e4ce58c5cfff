"""Run the Python side of a federation in which a C program takes part over MQTT.

`python federation.py data FILE` writes the examples and the settings of client 7, the C program.
`python federation.py run` runs the server and two Python clients on a broker, and prints each
round; with `--output FILE`, it writes the weights that the federation ends with.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fedtern import Client, Layout, Server, stc
from fedtern.core.protocol import Broadcast
from fedtern.core.protocol.terms import Terms
from fedtern.transports.mqtt import Broker, Delta, MqttServer, RoundPolicy, join, serve

FEDERATION = "digits"
DEVICE = 7  # the number of the C program
OTHERS = (0, 1)
FEATURES = 64
CLASSES = 10
RATE = 0.5
LAYOUT = Layout(("weight", "bias"), ((CLASSES, FEATURES), (CLASSES,)))
METHOD = stc(p_up=1 / 20, p_down=1 / 20)
START = np.zeros(LAYOUT.size, np.float32)

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


def load() -> tuple[Floats, Labels]:
    """Images with pixels from 0 to 1, and their digits."""
    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels.astype(np.int64)


def share(client: int) -> tuple[Floats, Labels]:
    """The training examples of one client."""
    images, labels = load()
    mine = [*OTHERS, DEVICE].index(client)
    return images[mine:1200:3], labels[mine:1200:3]


def write_data(path: Path) -> None:
    """Write everything that the C program has to know: see `read_data` in digits_client.c."""
    images, labels = share(DEVICE)
    head = struct.pack("<8sIII", b"FTDEV1\r\n", FEATURES, CLASSES, len(labels))
    settings = struct.pack("<dd", METHOD.parameters["p_up"], RATE) + Terms(LAYOUT, METHOD).digest
    examples = images.astype("<f4").tobytes() + labels.astype(np.uint8).tobytes()
    path.write_bytes(head + settings + START.astype("<f4").tobytes() + examples)


def probabilities(weights: Floats, images: Floats) -> Floats:
    """Softmax of a linear model."""
    parts = LAYOUT.unflatten(weights)
    scores: Floats = images @ parts["weight"].T + parts["bias"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def step(weights: Floats, images: Floats, labels: Labels) -> Floats:
    """One step of gradient descent on all examples, as the change of the weights."""
    errors = probabilities(weights, images)
    errors[np.arange(len(labels)), labels] -= 1
    gradient = LAYOUT.flatten([errors.T @ images, errors.sum(axis=0)])
    return -RATE / len(labels) * gradient


def accuracy(weights: Floats) -> float:
    """Share of correct answers on examples that no client trains on."""
    images, labels = load()
    answers = probabilities(weights, images[1200:]).argmax(axis=1)
    return float((answers == labels[1200:]).mean())


async def run(broker: Broker, rounds: int, min_clients: int, pause: float) -> tuple[Floats, int]:
    """Run the federation; return its weights and how many uploads of the C program counted."""
    server = Server(START, METHOD, LAYOUT, federation=FEDERATION)
    counted = 0

    def on_round(_: MqttServer) -> None:
        nonlocal counted
        data = server.newest_broadcast(server.round - 1)
        uploaded = Broadcast.open(data, server.terms).counted if data else frozenset()
        counted += DEVICE in uploaded
        clients = ", ".join(map(str, sorted(uploaded)))
        score = accuracy(np.array(server.weights))
        print(f"round {server.round}: accuracy {score:.1%}, uploads of {clients}", flush=True)

    async def python_client(number: int) -> None:
        images, labels = share(number)

        def train(weights: Floats, round: int) -> Delta:
            time.sleep(pause)
            return Delta(step(weights, images, labels))

        client = Client(number, METHOD, LAYOUT, START, federation=FEDERATION)
        await join(client, train, broker, num_examples=len(labels))

    plan = RoundPolicy(deadline=20, min_clients=min_clients, rounds=rounds)
    clients = [python_client(number) for number in OTHERS]
    await asyncio.gather(serve(server, broker, plan, on_round=on_round), *clients)
    return np.array(server.weights), counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data", help="write the data file of the C program")
    data.add_argument("file", type=Path)
    start = commands.add_parser("run", help="run the server and the Python clients")
    start.add_argument("--host", default="localhost")
    start.add_argument("--port", type=int, default=1883)
    start.add_argument("--rounds", type=int, default=100)
    start.add_argument("--min-clients", type=int, default=3, help="clients to wait for")
    start.add_argument("--pause", type=float, default=0.0, help="seconds before each training")
    start.add_argument("--output", type=Path, help="file for the final weights")
    options = parser.parse_args()
    if options.command == "data":
        write_data(options.file)
        return
    broker = Broker(options.host, options.port)
    federation = run(broker, options.rounds, options.min_clients, options.pause)
    weights, counted = asyncio.run(federation)
    print(f"{counted} uploads of the C program counted")
    if options.output is not None:
        options.output.write_bytes(weights.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
