"""Cost of a secure round for one client and for the server, by the size of the cohort.

`python benchmarks/secure_cost.py` runs one round of all messages for each cohort, in which a fifth
of the clients leaves before the masked upload, and prints bytes and CPU seconds.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from fedtern import Layout
from fedtern.core.protocol.terms import Terms
from fedtern.privacy.secure import (
    Context,
    SecureClient,
    SecureServer,
    ServerState,
    secure_topk,
)
from fedtern.privacy.secure.graph import Graph

COHORTS = (10, 100, 1000)
PHASES = ("keys", "shares", "masked", "revealed")


@dataclass
class Cost:
    """Means over the clients that stayed.

    Attributes:
        up: bytes sent in each phase.
        down: bytes received in each phase.
        client_seconds: CPU seconds of a client.
        server_seconds: CPU seconds of the server.

    """

    up: dict[str, float] = field(default_factory=dict)
    down: dict[str, float] = field(default_factory=dict)
    client_seconds: float = 0.0
    server_seconds: float = 0.0


def measure(size: int, parameters: int, dropout: float) -> Cost:
    """Run one round and check its sum."""
    method = secure_topk(positions="random")
    context = Context(Terms(Layout.flat(parameters), method), b"abc", 1)
    rng = np.random.default_rng(size)
    left = set(rng.choice(size, int(dropout * size), replace=False).tolist())
    cost = Cost()
    up: dict[str, list[int]] = defaultdict(list)
    down: dict[str, list[int]] = defaultdict(list)
    begin = time.process_time()
    server = SecureServer(context, range(size), 0.01)
    outgoing = server.invitations()
    cost.server_seconds += time.process_time() - begin
    clients: dict[int, SecureClient] = {}
    total = np.zeros(1, np.int64)
    spent: dict[int, float] = defaultdict(float)
    for phase in PHASES:
        answers = {}
        for i, data in outgoing.items():
            if i in left and phase == "masked":
                continue
            begin = time.process_time()
            if phase == "keys":
                clients[i] = SecureClient(i, context, data)
                answer: bytes | None = clients[i].advertise()
            else:
                answer = clients[i].receive(data)
            if answer is None:
                levels = rng.integers(-7, 8, clients[i].compressor.positions.size)
                total = total + levels
                answer = clients[i].mask(levels, 0)
            spent[i] += time.process_time() - begin
            answers[i] = answer
            if i not in left:
                up[phase].append(len(answer))
                down[phase].append(len(data))
        begin = time.process_time()
        for i, data in answers.items():
            server.receive(i, data)
        outgoing = server.advance()
        cost.server_seconds += time.process_time() - begin
    assert server.state is ServerState.FINISHED, server.reason
    assert server.result is not None
    assert (server.result.levels == total).all()
    cost.up = {phase: float(np.mean(up[phase])) for phase in PHASES}
    cost.down = {phase: float(np.mean(down[phase])) for phase in PHASES}
    cost.client_seconds = float(np.mean([spent[i] for i in range(size) if i not in left]))
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, nargs="*", default=COHORTS)
    parser.add_argument("--parameters", type=int, default=7850, help="size of the model")
    parser.add_argument("--dropout", type=float, default=0.2)
    options = parser.parse_args()
    print(
        "| cohort | neighbours | shares needed | keys | shares | masked | revealed | all up, bytes"
        " | all down, bytes | client, ms | server, s |"
    )
    print("|" + "---|" * 11)
    for size in options.cohorts:
        cost = measure(size, options.parameters, options.dropout)
        graph = Graph.of(range(size), b"")
        phases = " | ".join(f"{cost.up[phase]:,.0f}" for phase in PHASES)
        print(
            f"| {size:,} | {graph.degree} | {graph.threshold} | {phases} |"
            f" {sum(cost.up.values()):,.0f} | {sum(cost.down.values()):,.0f} |"
            f" {1000 * cost.client_seconds:,.0f} | {cost.server_seconds:,.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
