"""Growth of the cost of each stage with values, values sent, uploads and clients.

The result is an exponent, the slope of a line through the logarithms: 1 is linear. Small vectors
fit into caches and large ones do not, so even the addition of two vectors grows faster than
linearly. Its exponent over the same sizes is the peer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import torch

import tasks
from fedtern import Environment, stc
from fedtern.core.codecs import TernaryCodec
from fedtern.core.compressors import SparseTernary
from fedtern.core.feedback import EMPTY, ErrorFeedback, State
from fedtern.core.layout import Layout
from fedtern.data.hyperparameters import Sgd
from fedtern.training.tasks import get_task
from fedtern.transports.local.simulation import federate
from rows import Options, P, Row, Rows, Target, Work, exponent, random_ternary, take_turns
from server import Cohort

LINEAR = Target("<=", 1.05, "ours")
STAGES = ("compress + encode", "decode + apply", "aggregate 10")


class Stages:
    """The work of both sides on one vector."""

    def __init__(self, size: int, p: float) -> None:
        self.rng = np.random.default_rng(size)
        self.layout = Layout.flat(size)
        self.codec = TernaryCodec()
        self.memory = ErrorFeedback(SparseTernary(p))
        self.state: State = EMPTY
        self.source = self.rng.standard_normal(size, np.float32)
        self.delta = self.source.copy()
        self.weights = np.zeros(size, np.float32)
        self.data = self.codec.encode(random_ternary(size, p, self.rng), self.layout)
        self.cohort = Cohort(10, size, p)

    def prepare(self) -> None:
        """Copy the delta, untimed: a step overwrites its delta."""
        self.delta = self.source.copy()

    def compress(self) -> None:
        update, self.state = self.memory.step(self.delta, self.state, self.layout, self.rng)
        self.codec.encode(update, self.layout)

    def apply(self) -> None:
        self.codec.decode(self.data, self.layout).add_to(self.weights)

    def works(self) -> dict[str, Work | tuple[Work, Work]]:
        return {
            "np.add": lambda: np.add(self.weights, self.source, out=self.weights),
            STAGES[0]: (self.prepare, self.compress),
            STAGES[1]: self.apply,
            STAGES[2]: (self.cohort.decode, self.cohort.aggregate),
        }


Curves = dict[str, list[tuple[float, float]]]


def _measure(points: Sequence[tuple[float, int, float]], quick: bool) -> Curves:
    """Return milliseconds of each stage for each (x, size, p)."""
    curves: Curves = {}
    for x, size, p in points:
        few = max(5, min(100, 50_000_000 // size))  # more repeats for small sizes
        found = take_turns(Stages(size, p).works(), 3 if quick else few, warm_up=2)
        for name, seconds in found.items():
            curves.setdefault(name, []).append((x, 1e3 * seconds))
    return curves


def rows(options: Options) -> Rows:
    most = 6 if options.quick else 8 if options.large else 7
    sizes = [10.0**e for e in np.arange(4, most + 0.1, 0.5)]
    curves = _measure([(round(n), round(n), P) for n in sizes], options.quick)
    adding = exponent(curves["np.add"])
    add = f"np.add {exponent(_last(curves['np.add'])):.2f}"
    for stage in STAGES:
        row = _row(f"{stage}, by values", f"10^4 to 10^{most} values", curves[stage], adding)
        yield replace(row, note=f"{row.note} ({add})")
    size = 100_000 if options.quick else 1_000_000
    rates = (1 / 1000, 1 / 400, 1 / 100, 1 / 40, 1 / 10)
    curves = _measure([(int(size * p), size, p) for p in rates], options.quick)
    for stage in STAGES:
        yield _row(f"{stage}, by values sent", f"p = 1/1000 to 1/10 of {size:,}", curves[stage])
    counts = (1, 10, 100) if options.quick else (1, 3, 10, 30, 100, 300, 1000)
    aggregated = []
    for count in counts:
        cohort = Cohort(count, size)
        seconds = take_turns({"": (cohort.decode, cohort.aggregate)}, 9)[""]
        aggregated.append((float(count), 1e3 * seconds))
    yield _row("aggregate, by uploads", f"1 to {counts[-1]:,} uploads of {size:,}", aggregated)
    yield from _by_clients(options.quick)


def _by_clients(quick: bool) -> Rows:
    """Rounds of a small model with ten clients, out of a growing number of clients."""
    torch.set_num_threads(1)  # as `fedtern run` does
    task = get_task("logistic-mnist")
    starting = []
    playing = []
    rounds = 20 if quick else 200
    counts = (10, 100, 1000) if quick else (10, 100, 1000, 10_000, 100_000)
    for clients in (10, *counts):  # the first entry only warms up
        dataset = tasks.noise("mnist", max(clients, 1000))
        environment = Environment(clients=clients, participation=10 / clients, split="iid")
        begin = time.perf_counter()
        sgd = Sgd(task.learning_rate)
        with closing(federate(task, dataset, stc(), environment, sgd, seed=0)) as federation:
            starting.append((float(clients), 1e3 * (time.perf_counter() - begin)))
            seconds = []
            for _ in range(rounds):
                begin = time.perf_counter()
                federation.step()
                seconds.append(time.perf_counter() - begin)
        playing.append((float(clients), 1e3 * statistics.median(seconds)))
    starting = starting[1:]
    playing = playing[1:]
    among = f"10 of 10 to 10 of {clients:,} clients"
    yield _row("a round, by clients", f"{among}, {rounds} rounds", playing)
    yield _row("starting, by clients", f"{among}, splitting the data included", starting)


def _last(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points of the last decade, where fixed costs and caches matter least."""
    return [(x, y) for x, y in points if x >= 0.09 * points[-1][0]]


def _row(
    name: str, note: str, points: list[tuple[float, float]], adding: float | None = None
) -> Row:
    peer = "linear growth" if adding is None else "np.add over the same sizes"
    theirs = 1.0 if adding is None else adding
    ends = f"{points[0][1]:.3g} to {points[-1][1]:.3g} ms"
    note = f"{note}; {ends}; {exponent(_last(points)):.2f} over the last decade"
    return Row(name, peer, exponent(points), theirs, "exponent", LINEAR, note, tuple(points))
