"""Rounds per second of our simulator and of Flower's, with the same model, data and cohort.

Flower averages uncompressed updates (FedAvg); ours compresses them in both directions. Flower's
start-up and first rounds are not counted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import torch

import tasks
from fedtern import Environment, stc
from fedtern.data.hyperparameters import Sgd
from fedtern.transports.local.simulation import federate
from rows import Options, Row, Rows, Target

SKIPPED = 5  # first rounds: actors start and load their data
TARGETS = {"logistic-mnist": 40.0}
PEER = "Flower's simulation, FedAvg"


def rows(options: Options) -> Rows:
    if find_spec("flwr") is None or find_spec("ray") is None:
        install = "pip install 'flwr[simulation]==1.41.0' torch==2.13.0"
        yield Row("flower", PEER, note=f"not installed: {install}")
        return
    torch.set_num_threads(1)
    for name in tasks.TASKS[:1] if options.quick else tasks.TASKS:
        yield compare(name, options)


def compare(name: str, options: Options) -> Row:
    """Measure our rounds before and after each run of Flower."""
    task, dataset, remark = tasks.load(name)
    sgd = Sgd(task.learning_rate, task.momentum, task.weight_decay)
    rounds = 10 if options.quick else 40
    mine = []
    theirs = []
    with closing(federate(task, dataset, stc(), Environment(), sgd, seed=0)) as federation:
        for _ in range(3):  # warm up
            federation.step()
        for turn in range(2 if options.quick else 3):
            if turn:
                theirs += _flower(name, rounds)
            until = time.perf_counter() + 2.0
            while (begin := time.perf_counter()) < until:
                federation.step()
                mine.append(time.perf_counter() - begin)
    ours = 1 / statistics.median(mine)
    flower = 1 / statistics.median(theirs)
    target = Target(">=", TARGETS[name]) if name in TARGETS else None
    note = f"medians of {len(mine)} and {len(theirs)} rounds"
    return Row(
        name, PEER, ours, flower, "rounds/s", target, "; ".join(filter(None, (remark, note)))
    )


def _flower(name: str, rounds: int) -> list[float]:
    """Seconds of each round of Flower, without the first rounds."""
    script = Path(__file__).with_name("flower_app.py")
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, str(script), name, str(rounds + SKIPPED)],
            env={**os.environ, "FLWR_HOME": home, "PYTHONPATH": str(script.parent)},
            capture_output=True,
            check=False,
            text=True,
        )
    found = [float(x.split()[1]) for x in done.stdout.splitlines() if x.startswith("round ")]
    if len(found) <= SKIPPED:
        raise RuntimeError(f"Flower exited with code {done.returncode}: {done.stderr[-2000:]}")
    return found[SKIPPED:]
