"""Ten clients with different data, one server, and real messages between them.

Each client minimises its own quadratic function; the federation minimises their sum. Clients send
only a few values per round. `python examples/convex.py` prints the bytes beside those of
uncompressed training for the same number of rounds.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from fedtern import Client, Method, Server, sgd, stc

Weights = NDArray[np.float32]
PARAMETERS = 20_000
CLIENTS = 10


class Problem:
    """Client i minimises sum_j h_j (w_j - c_ij)^2 / 2; the sum has its optimum at mean(c_i)."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.curvature = rng.uniform(0.1, 1.0, PARAMETERS).astype(np.float32)
        common = rng.standard_normal(PARAMETERS)
        own = rng.standard_normal((CLIENTS, PARAMETERS))
        self.centres = (common + own).astype(np.float32)
        self.optimum = self.centres.mean(axis=0)

    def gradient(self, client: int, weights: Weights) -> Weights:
        """Gradient of one client's function."""
        gradient: Weights = self.curvature * (weights - self.centres[client])
        return gradient

    def distance(self, weights: Weights) -> float:
        """Distance to the optimum, relative to the distance at the start (zero weights)."""
        return float(np.linalg.norm(weights - self.optimum) / np.linalg.norm(self.optimum))


def federate(method: Method, rounds: int, problem: Problem) -> tuple[float, int, int]:
    """Train and print; return the distance and the bytes up and down."""
    start = np.zeros(PARAMETERS)
    server = Server(start, method)
    clients = [Client(i, method, weights=start) for i in range(CLIENTS)]
    up = down = 0
    begin = time.perf_counter()
    print(f"\n{method.name}: {CLIENTS} clients, {PARAMETERS:,} parameters, {rounds} rounds")
    print(f"{'round':>8} {'distance':>10} {'MB up':>10} {'MB down':>10}")
    for t in range(rounds):
        rate = np.float32(0.05 * (1 - t / rounds))
        for i, client in enumerate(clients):
            data = client.send(client.weights - rate * problem.gradient(i, client.weights)).data
            server.receive(i, data)
            up += len(data)
        broadcast = server.finish_round().data
        for client in clients:
            client.receive(broadcast)
            down += len(broadcast)
        if (t + 1) % (rounds // 6) == 0:
            distance = problem.distance(server.weights)
            print(f"{t + 1:>8} {distance:>10.2%} {up / 1e6:>10.3f} {down / 1e6:>10.3f}")
    assert all(np.array_equal(client.weights, server.weights) for client in clients)
    seconds = time.perf_counter() - begin
    print(f"every client's weights equal the server's, bit for bit; {seconds:.1f} s")
    return problem.distance(server.weights), up, down


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--p", type=float, default=1 / 50, help="fraction of values to send")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    problem = Problem(options.seed)
    dense = federate(sgd(), options.rounds, problem)
    sparse = federate(stc(p_up=options.p, p_down=options.p), options.rounds, problem)
    print(f"\n{'':12} {'distance':>10} {'MB up':>10} {'MB down':>10}")
    for name, (distance, up, down) in (("uncompressed", dense), ("stc", sparse)):
        print(f"{name:12} {distance:>10.2%} {up / 1e6:>10.3f} {down / 1e6:>10.3f}")
    print(
        f"{'':12} {'':10} {dense[1] / sparse[1]:>9.0f}x {dense[2] / sparse[2]:>9.0f}x fewer bytes"
    )


if __name__ == "__main__":
    main()
