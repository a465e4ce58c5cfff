"""Memory of clients that have taken part, and disk space above a limit.

A federation of VGG11* with real residuals, momentum, messages and server; only the training is
replaced by noise. Cohorts of a hundred go through all clients in order, and then again: the worst
order for a cache of recently used clients.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

import tasks
from fedtern import Environment, stc
from fedtern.core.carried import NO_VALUES, Values
from fedtern.core.layout import Vector
from fedtern.data.hyperparameters import Sgd
from fedtern.federation.client_session import Job, Outcome, Scores
from fedtern.training.tasks import get_task
from fedtern.transports.local.federation import Federation
from fedtern.transports.local.simulation import federate
from rows import VGG11S, Options, Row, Rows, Target

GIB = float(1 << 30)
COHORT = 100
PEER = "the vectors themselves"
T = TypeVar("T")


class InTurn(Environment):
    """Cohorts that go through all clients in order, again and again."""

    def cohort(self, seed: int, round: int) -> list[int]:
        first = round * COHORT % self.clients
        return list(range(first, min(first + COHORT, self.clients)))


class Noise:
    """A ``Trainer`` that returns random deltas at once."""

    together = 1

    def __init__(self, size: int, momentum: bool) -> None:
        self.source = np.random.default_rng(0).standard_normal(size + 10_000, np.float32)
        self.size = size
        self.momentum = momentum
        self.turn = 0

    def train(
        self, weights: Vector, jobs: Iterable[Job], carried: Values = NO_VALUES
    ) -> Iterator[Outcome]:
        for _ in jobs:
            self.turn = (self.turn + 7919) % 10_000
            delta = self.source[self.turn : self.turn + self.size].copy()
            yield Outcome(delta, delta.copy() if self.momentum else None, None)

    def evaluate(self, weights: Vector, carried: Values = NO_VALUES) -> Scores:
        return Scores(0.0, {"accuracy": 0.0})

    def close(self) -> None:
        pass


def federation(
    clients: int, momentum: bool, limit: int | None = None, directory: Path | None = None
) -> Federation:
    task = get_task("vgg11s-cifar10")
    dataset = tasks.noise("cifar10", max(clients, 1000))
    found = federate(
        task, dataset, stc(), InTurn(clients=clients, participation=COHORT / clients, split="iid"),
        Sgd(task.learning_rate, 0.9 if momentum else 0.0), seed=0,
        memory_bytes=limit, spill_directory=directory, workers=0,
    )  # fmt: skip
    found.trainer = Noise(VGG11S, momentum)
    return found


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith("MemAvailable"))
    return int(found.split()[1]) << 10


def alone(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a new process, which has allocated nothing yet."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def grow(clients: int, momentum: bool) -> list[tuple[int, int]]:
    """Number of clients that took part, and resident bytes, after each round."""
    torch.set_num_threads(1)
    found = [(0, 0)]
    with closing(federation(clients, momentum)) as running:
        for _ in range(clients // COHORT):
            running.step()
            found.append((len(found) * COHORT, resident()))
    return found[1:]


@dataclass(frozen=True)
class Spilled:
    """Milliseconds per client and round, without training, and milliseconds per batch."""

    first: float  # the first time, when most clients only write
    again: float  # with a residual read from disk
    held: float  # with a residual in memory
    batch: float
    peak: int
    on_disk: int


def spill(clients: int, limit: int, directory: str, momentum: bool) -> Spilled:
    """Run all clients once and some of them again, alternating with a federation in memory."""
    torch.set_num_threads(1)
    begin = resident()
    large = federation(clients, momentum, limit, Path(directory))
    with closing(large):
        first = [_step(large) for _ in range(clients // COHORT)]
        peak = resident() - begin
        small = federation(COHORT, momentum)
        small.step()  # so that its clients have residuals
        again = []
        held = []
        for _ in range(min(clients // COHORT, 15)):
            again.append(_step(large))
            held.append(_step(small))
        on_disk = large.clients_on_disk
    task = get_task("vgg11s-cifar10")
    data = tasks.noise("cifar10", 1000)
    sgd = Sgd(task.learning_rate, 0.9)
    one = replace(Environment(), clients=1, participation=1.0)
    with closing(federate(task, data, stc(), one, sgd, seed=0, workers=0)) as training:
        seconds = []
        for position in range(8):
            start = time.perf_counter()
            list(training.trainer.train(training.witness.weights, [Job(0, position)]))
            seconds.append(time.perf_counter() - start)
    one_turn, another, fetched, batch = map(statistics.median, (first, again, held, seconds))
    return Spilled(one_turn, another, fetched, 1e3 * batch, peak, on_disk)


def _step(running: Federation) -> float:
    begin = time.perf_counter()
    running.step()
    return 1e3 * (time.perf_counter() - begin) / COHORT


def rows(options: Options) -> Rows:
    for momentum in (False, True):
        yield _in_memory(momentum, options.quick)
    yield from _on_disk(options.quick)


def _in_memory(momentum: bool, quick: bool) -> Row:
    clients = 1000
    vectors = 2 if momentum else 1
    bare = 4 * VGG11S * vectors
    fits = available() > 1.3 * clients * bare + GIB
    measured = clients if fits and not quick else 300
    points = alone(grow, measured, momentum)
    slope = float(np.polyfit([x for x, _ in points], [y for _, y in points], 1)[0])
    note = f"{slope / 1e6:.2f} MB per client, fitted to {len(points)} rounds"
    if measured < clients:
        reason = "--quick" if quick else "no memory for more"
        note += f"; {measured} clients measured ({reason})"
    what = "residuals and momentum" if momentum else "residuals"
    return Row(
        f"{clients:,} clients, {what}", PEER, slope * clients / GIB, bare * clients / GIB, "GiB",
        Target("<=", 5.0, "ours"), note, tuple((float(x), y / GIB) for x, y in points),
    )  # fmt: skip


def _on_disk(quick: bool) -> Rows:
    bare = 4 * VGG11S
    clients, limit = (400, 100 * bare) if quick else (10_000, 4 << 30)
    with tempfile.TemporaryDirectory(prefix="fedtern-bench-") as directory:
        room = shutil.disk_usage(directory).free
        fitting = int((0.8 * room + limit) / bare) // COHORT * COHORT
        wanted = clients
        clients = min(clients, fitting)
        if available() < 1.3 * limit + 2 * COHORT * bare:
            yield Row("clients on disk", note="not measured: not enough memory for the limit")
            return
        found = alone(spill, clients, limit, directory, False)
    note = "--quick" if quick else ""
    if clients < wanted:
        note = f"{clients:,} of {wanted:,} clients: only {room / 1e9:.0f} GB of free disk"
    yield Row(
        f"{clients:,} clients, limit {limit / GIB:.2g} GiB, rest on disk", "the limit",
        found.peak / GIB, limit / GIB, "GiB",
        note="; ".join(filter(None, (note, f"{found.on_disk:,} clients on disk"))),
    )  # fmt: skip
    yield Row(
        "client and round, state on disk", "state in memory", found.again, found.held, "ms",
        note=f"without training; the first time, when most only write, {found.first:.3g} ms",
    )  # fmt: skip
    batch = found.batch / len(os.sched_getaffinity(0))
    yield Row(
        "the same with a batch of VGG11*", "state in memory",
        batch + found.again, batch + found.held, "ms",
        note=f"computed: a batch takes {found.batch:.3g} ms on one core, and all cores train",
    )  # fmt: skip
