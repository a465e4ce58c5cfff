"""Time of a round on the server, with 1 to 1,000 uploads of VGG11* (865,482 values)."""

from __future__ import annotations

import numpy as np

from fedtern import Client, Server, stc
from fedtern.core.feedback import EMPTY, State
from fedtern.core.protocol import Upload
from fedtern.core.updates import Update
from rows import (
    VGG11S,
    Options,
    P,
    Row,
    Rows,
    Target,
    Work,
    exponent,
    random_ternary,
    take_turns,
)

PEER = "adding as many dense vectors"


class Cohort:
    """A server between two rounds, and the uploads of a number of clients."""

    def __init__(self, count: int, size: int = VGG11S, p: float = P) -> None:
        rng = np.random.default_rng(count)
        self.method = stc(p, p)
        self.server = Server(np.zeros(size), self.method)
        self.layout = self.server.terms.layout
        self.count = count
        self.witness = Client(count, self.method, weights=self.server.weights)
        self.broadcast = b""
        self.updates: list[Update] = [random_ternary(size, p, rng) for _ in range(count)]
        self.payloads = [self.method.up.codec.encode(u, self.layout) for u in self.updates]
        self.uploads: list[bytes] = []
        self.state: State = EMPTY
        self.delta = np.zeros(size, np.float32)
        self.update: Update = self.updates[0]
        self.rng = rng

    def seal(self) -> None:
        """Write the uploads of this round, untimed."""
        if self.broadcast:
            self.witness.receive(self.broadcast)
        stamp = self.witness.stamp
        round = self.server.round
        terms = self.server.terms
        self.uploads = [Upload.seal(stamp, round, payload, terms) for payload in self.payloads]

    def receive(self) -> None:
        for client, data in enumerate(self.uploads):
            self.server.receive(client, data)

    def finish(self) -> None:
        self.broadcast = self.server.finish_round().data

    def decode(self) -> None:
        """Decode the uploads again, untimed: decoded updates cache results."""
        self.updates = [self.method.up.codec.decode(p, self.layout) for p in self.payloads]

    def aggregate(self) -> None:
        examples = [1] * self.count
        self.delta = self.method.aggregate.combine(self.updates, examples)

    def compress(self) -> None:
        step = self.method.down.feedback.step
        self.update, self.state = step(self.delta, self.state, self.layout, self.rng)

    def encode(self) -> bytes:
        return self.method.down.codec.encode(self.update, self.layout)


def dense_sums(count: int, size: int = VGG11S) -> Work:
    """Return a function that adds ``count`` dense vectors, cycling through eight of them."""
    vectors = [np.full(size, i, np.float32) for i in range(8)]
    out = np.zeros(size, np.float32)

    def run() -> None:
        for i in range(count):
            np.add(out, vectors[i % 8], out=out)

    return run


def rows(options: Options) -> Rows:
    counts = (1, 10, 100) if options.quick else (1, 10, 100, 1000)
    repeats = 2 if options.quick else 7
    received = []
    finished = []
    for count in counts:
        cohort = Cohort(count)
        seconds = take_turns(
            {
                "dense": dense_sums(count),
                "receive": (cohort.seal, cohort.receive),
                "finish": cohort.finish,
                "aggregate": (cohort.decode, cohort.aggregate),
                "compress": cohort.compress,
                "encode": cohort.encode,
            },
            repeats,
        )
        ms = {name: 1e3 * value for name, value in seconds.items()}
        received.append((float(count), ms["receive"]))
        finished.append((float(count), ms["finish"]))
        answer = ms["aggregate"] + ms["compress"] + ms["encode"]
        target = Target("<=", 250, "ours") if count == 1000 else None
        stages = ", ".join(f"{n} {ms[n]:.2g}" for n in ("aggregate", "compress", "encode"))
        yield Row(
            f"{count:,} uploads: aggregate, compress, encode",
            PEER, answer, ms["dense"], "ms", target, stages,
        )  # fmt: skip
        yield Row(f"{count:,} uploads: receive", PEER, ms["receive"], ms["dense"], "ms")
        yield Row(f"{count:,} uploads: finish_round", PEER, ms["finish"], ms["dense"], "ms")
    for name, points in (("receive", received), ("finish_round", finished)):
        yield Row(
            f"growth of {name} with uploads", "linear growth", exponent(points), 1.0, "exponent",
            Target("<=", 1.05), f"1 to {counts[-1]:,} uploads", tuple(points),
        )  # fmt: skip
