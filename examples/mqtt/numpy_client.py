"""A federation over MQTT whose clients train with NumPy alone: no torch, no compiler.

Install it with `pip install '.[mqtt]'`, and run a broker such as mosquitto. Then:

    python numpy_client.py serve
    python numpy_client.py join 0        # and join 1, join 2 in other terminals

Each client has readings of ten sensors and learns which of four machines they come from. Client 0
never sees machine 0, client 1 never sees machine 1, and so on.
"""

from __future__ import annotations

import argparse
import asyncio

import numpy as np
from numpy.typing import NDArray

from fedtern import Client, Layout, Server, stc
from fedtern.transports.mqtt import Broker, MqttServer, RoundPolicy, join, serve

SENSORS, MACHINES = 10, 4
LAYOUT = Layout(("weight", "bias"), ((MACHINES, SENSORS), (MACHINES,)))
METHOD = stc(p_up=1 / 10, p_down=1 / 10)
RATE = 0.2

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


def readings(seed: int, without: int | None = None) -> tuple[Floats, Labels]:
    """Readings around the mean of each machine. Replace them with your own."""
    means = np.random.default_rng(0).standard_normal((MACHINES, SENSORS))
    rng = np.random.default_rng(seed)
    labels = rng.choice([m for m in range(MACHINES) if m != without], 300)
    values = means[labels] + rng.standard_normal((300, SENSORS))
    return values.astype(np.float32), labels


def probabilities(weights: Floats, values: Floats) -> Floats:
    """Softmax of a linear model."""
    parts = LAYOUT.unflatten(weights)
    scores: Floats = np.exp(values @ parts["weight"].T + parts["bias"])
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def train(weights: Floats, values: Floats, labels: Labels) -> Floats:
    """One step of gradient descent; return the new weights."""
    errors = probabilities(weights, values)
    errors[np.arange(len(labels)), labels] -= 1
    gradient = LAYOUT.flatten([errors.T @ values, errors.sum(axis=0)])
    return weights - np.float32(RATE / len(labels)) * gradient


async def run_server(broker: Broker, clients: int, rounds: int) -> None:
    server = Server(np.zeros(LAYOUT.size, np.float32), METHOD, LAYOUT, federation="machines")
    values, labels = readings(seed=1)

    def on_round(_: MqttServer) -> None:
        accuracy = (probabilities(server.weights, values).argmax(axis=1) == labels).mean()
        print(f"round {server.round}: accuracy {accuracy:.1%}", flush=True)

    policy = RoundPolicy(deadline=30, min_clients=clients, rounds=rounds)
    await serve(server, broker, policy, on_round=on_round)
    print(f"weights {server.weights.tobytes().hex()[:16]}")


async def run_client(broker: Broker, number: int) -> None:
    values, labels = readings(seed=2 + number, without=number)
    client = Client(number, METHOD, LAYOUT, federation="machines")
    await join(client, lambda weights, _round: train(weights, values, labels), broker)
    print(f"weights {client.weights.tobytes().hex()[:16]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--broker", default="mqtt://localhost", help="address of the broker")
    commands = parser.add_subparsers(dest="command", required=True)
    server = commands.add_parser("serve", help="run the server")
    server.add_argument("--clients", type=int, default=3, help="clients to wait for")
    server.add_argument("--rounds", type=int, default=200)
    client = commands.add_parser("join", help="run a client")
    client.add_argument("number", type=int, choices=range(MACHINES))
    options = parser.parse_args()
    broker = Broker.parse(options.broker)
    if options.command == "serve":
        asyncio.run(run_server(broker, options.clients, options.rounds))
    else:
        asyncio.run(run_client(broker, options.number))


if __name__ == "__main__":
    main()
