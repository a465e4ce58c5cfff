"""Rounds per second of the simulator, compared with training alone.

Ours is a complete round of STC: ten of a hundred clients catch up, train on a batch of 20, compress
and encode; the server decodes, aggregates and broadcasts. The limit is a plain PyTorch loop over as
many batches without communication: one process per core with one thread each, or one process with
all threads, whichever is faster on this machine.

Convolutions are faster in channels-last order, which our trainer uses and a plain loop does not.
For them, a channels-last loop is a second limit.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import tasks
from fedtern import Environment, stc
from fedtern.data import Dataset
from fedtern.data.hyperparameters import Sgd
from fedtern.training.tasks import Task
from fedtern.transports.local.simulation import federate
from rows import Options, Row, Rows, Target

TARGETS = {"cnn-kws": 0.85, "lstm-fashion": 0.85, "vgg11s-cifar10": 0.90}
# Approximate length of each turn.
SECONDS = 2.5
QUICK_SECONDS = 0.3


class Loop:
    """Forked processes that only train, each on its own."""

    def __init__(
        self, task: Task, dataset: Dataset, processes: int, threads: int, pixels: bool = False
    ) -> None:
        self.processes = processes
        self.threads = threads
        self.pixels = pixels
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._workers = []
        for seed in range(processes):
            ours, theirs = context.Pipe()
            arguments = (task, dataset, threads, seed, pixels, theirs)
            worker = context.Process(target=_train, args=arguments, daemon=True)
            worker.start()
            theirs.close()
            self._pipes.append(ours)
            self._workers.append(worker)

    def run(self, batches: int) -> None:
        """Train on ``batches`` batches in total."""
        shares = [len(range(i, batches, self.processes)) for i in range(self.processes)]
        for pipe, share in zip(self._pipes, shares, strict=True):
            pipe.send(share)
        for pipe in self._pipes:
            pipe.recv()

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)  # not close(): other forked processes hold the pipe too
        for worker in self._workers:
            worker.join()


def _train(
    task: Task, dataset: Dataset, threads: int, seed: int, pixels: bool, pipe: Connection
) -> None:
    torch.set_num_threads(threads)
    model = task.build(0)
    (examples, _) = task.examples(dataset)
    sgd = torch.optim.SGD(
        model.parameters(), task.learning_rate, task.momentum, 0, task.weight_decay, fused=True
    )
    rng = np.random.default_rng(seed)
    size = Environment().batch_size
    order = rng.permutation(len(examples))
    at = 0
    while (batches := pipe.recv()) is not None:
        for _ in range(batches):
            at = at + size if at + 2 * size <= len(order) else 0
            inputs, labels = examples.batch(order[at : at + size], lambda: rng)
            if pixels:
                inputs = inputs.to(memory_format=torch.channels_last)
            sgd.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            sgd.step()
        pipe.send(None)


def _measured(play: Callable[[int], object], rounds: int) -> tuple[float, float]:
    """Rounds per second, and CPU seconds per round."""
    begin = time.perf_counter()
    worked = _worked()
    play(rounds)
    return rounds / (time.perf_counter() - begin), (_worked() - worked) / rounds


def _worked() -> float:
    """CPU seconds of this process and its children so far."""
    ticks = 0
    for pid in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def compare(name: str, options: Options) -> Rows:
    """Compare our rounds per second with one or two limits."""
    task, dataset, remark = tasks.load(name)
    cores = len(os.sched_getaffinity(0))
    cohort = Environment().cohort_size
    sgd = Sgd(task.learning_rate, task.momentum, task.weight_decay)
    loops = [Loop(task, dataset, cores, 1)]
    if cores > 1:
        loops.append(Loop(task, dataset, 1, cores))
    convolves = any(isinstance(part, torch.nn.Conv2d) for part in task.build(0).modules())
    others = [Loop(task, dataset, cores, 1, pixels=True)] if convolves else []
    federation = federate(task, dataset, stc(), Environment(), sgd, seed=0)

    def ours(rounds: int) -> None:
        for _ in range(rounds):
            federation.step()

    def limit(loop: Loop) -> Callable[[int], None]:
        return lambda rounds: loop.run(cohort * rounds)

    with closing(federation):
        # Most clients have taken part then, and their residuals are in memory.
        ours(2 if options.quick else 25)
        trials = [_trial(limit(loop)) for loop in loops]
        limits = [loops[int(np.argmax(trials))], *others]
        for loop in others:
            _trial(limit(loop))
        plays = [ours, *map(limit, limits)]
        seconds, turns = (QUICK_SECONDS, 2) if options.quick else (SECONDS, 7)
        rounds = max(round(seconds * max(trials)), 2)
        speeds: list[list[float]] = [[] for _ in plays]
        costs = [0.0 for _ in plays]
        for _ in range(turns):
            for i, play in enumerate(plays):
                speed, cost = _measured(play, rounds)
                speeds[i].append(speed)
                costs[i] += cost
    for loop in {*loops, *limits}:
        loop.close()
    tried = [
        f"{loop.processes} x {loop.threads} tried: {speed:.3g}"
        for loop, speed in zip(loops, trials, strict=True)
        if loop not in limits
    ]
    for loop, theirs, cost in zip(limits, speeds[1:], costs[1:], strict=True):
        ratios = [a / b for a, b in zip(speeds[0], theirs, strict=True)]
        notes = [
            remark,
            *tried,
            f"{turns} turns of {rounds} rounds, ratios {min(ratios):.2f} to {max(ratios):.2f}",
            f"by CPU time {cost / costs[0]:.2f}",
        ]
        kind = "channels-last loop" if loop.pixels else "plain loop"
        yield Row(
            name,
            f"{kind}, processes x threads = {loop.processes} x {loop.threads}",
            statistics.median(speeds[0]),
            statistics.median(theirs),
            "rounds/s",
            Target(">=", TARGETS[name]) if name in TARGETS and not loop.pixels else None,
            "; ".join(filter(None, notes)),
        )


def _trial(play: Callable[[int], object]) -> float:
    """Speed of two rounds, after one to warm up."""
    play(1)
    return _measured(play, 2)[0]


def rows(options: Options) -> Rows:
    torch.set_num_threads(1)  # as `fedtern run` does, and before anything is forked
    for name in tasks.TASKS:
        yield from compare(name, options)
