"""CPU time of each stage with the compiled kernels and with those in NumPy, in one run.

`python benchmarks/kernels.py` prints a table in multiples of the addition of two vectors. Each
implementation runs in a process of its own; the processes take turns, and CPU time is measured, so
that other programs disturb little. `--size N` sets the number of values.
`--also NAME PYTHON SOURCE` adds another version of this package: its name, the Python to run it
with and its `src` directory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedtern.core.feedback import EMPTY, State
from fedtern.core.layout import Layout, Vector
from fedtern.core.methods import METHODS, Method
from fedtern.core.protocol import Client, Server
from rows import VGG11S, Options, Row, Rows

LARGE = 10_000_000  # above, only STC is measured, because the other methods take many vectors
UPLOADS = 10
ADD = "np.add"
SECONDS = 0.01  # CPU time of one turn, unless that takes more than REPEATS runs
REPEATS = 100


@dataclass
class Stage:
    """Timed work, and the preparation that is not timed."""

    run: Callable[[], object]
    prepare: Callable[[], object] = field(default=lambda: None)


def deltas(size: int, count: int) -> list[Vector]:
    rng = np.random.default_rng(0)
    return [0.01 * rng.standard_normal(size, np.float32) for _ in range(count)]


def stages_of_method(name: str, method: Method, size: int) -> dict[str, Stage]:
    """Stages of a link: compress, encode, decode, apply and aggregate."""
    layout = Layout.flat(size)
    rng = np.random.default_rng(0)
    link = method.up
    state: State = EMPTY
    given = deltas(size, 2)
    delta, turn = given[0].copy(), 0
    update, state = link.feedback.step(delta, state, layout, rng)
    data = link.codec.encode(update, layout)
    decoded = link.codec.decode(data, layout)
    weights = np.zeros(size, np.float32)

    def prepare() -> None:
        nonlocal delta, turn
        turn += 1
        delta = given[turn % 2].copy()  # a step overwrites its delta

    def compress() -> None:
        nonlocal state
        _, state = link.feedback.step(delta, state, layout, rng)

    stages = {
        "compress": Stage(compress, prepare),
        "encode": Stage(lambda: link.codec.encode(update, layout)),
        "decode": Stage(lambda: link.codec.decode(data, layout)),
        "apply": Stage(lambda: decoded.add_to(weights)),
    }
    if size <= LARGE:
        several = [decoded] * UPLOADS
        stages[f"aggregate {UPLOADS} uploads"] = Stage(
            lambda: method.aggregate.combine(several, [1] * UPLOADS)
        )
    return {f"{name}: {stage}": work for stage, work in stages.items()}


def stages_of_catch_up(size: int) -> dict[str, Stage]:
    """Stages of a catch-up over ten rounds of STC."""
    method = METHODS["stc"](p_up=1 / 400, p_down=1 / 400)
    layout = Layout.flat(size)
    server = Server(np.zeros(size, np.float32), method, layout)
    client = Client(0, method, layout, server.weights)
    for delta in deltas(size, UPLOADS):
        server.receive(0, client.send_delta(delta).data, 1)
        client.receive(server.finish_round().data)
    start = np.zeros(size, np.float32)
    data = server.catch_up(1, 0).data
    away = Client(1, method, layout, start)
    snapshot = server.snapshot()

    def forget() -> None:
        server.restore(snapshot)  # a server keeps the catch-ups that it wrote

    def join() -> None:
        nonlocal away
        away = Client(1, method, layout, start)

    return {
        "stc: write a catch-up of 10 rounds": Stage(lambda: server.catch_up(1, 0), forget),
        "stc: read a catch-up of 10 rounds": Stage(lambda: away.receive(data), join),
    }


def stages(size: int) -> dict[str, Stage]:
    """All stages, by name."""
    x, y = deltas(size, 2)
    found = {ADD: Stage(lambda: np.add(x, y, out=x))}
    found |= stages_of_method("stc", METHODS["stc"](p_up=1 / 400, p_down=1 / 400), size)
    if size <= LARGE:
        found |= stages_of_catch_up(size)
        for name in ("signsgd", "qsgd", "sketched"):
            found |= stages_of_method(name, METHODS[name](), size)
    return found


def work(size: int) -> None:
    """Time the stages whose names are read, one per line; print seconds of CPU time."""
    known = stages(size)
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        stage = known[line.strip()]
        times: list[float] = []
        while sum(times) < SECONDS and len(times) < REPEATS:
            stage.prepare()
            begin = time.process_time()
            stage.run()
            times.append(time.process_time() - begin)
        print(statistics.median(times), flush=True)


@dataclass(frozen=True)
class Version:
    """An implementation to measure."""

    name: str
    python: str
    environment: dict[str, str]


HERE = Path(__file__)
OURS = tuple(
    Version(name, sys.executable, {**os.environ, "FEDTERN_KERNELS": name})
    for name in ("native", "numpy")
)


class Worker:
    """A process that measures one version."""

    def __init__(self, version: Version, size: int) -> None:
        command = [version.python, str(HERE), "--work", "--size", str(size)]
        self.process = subprocess.Popen(
            command,
            env=version.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.stages: list[str] = json.loads(self._read())

    def measure(self, stage: str) -> float:
        assert self.process.stdin is not None  # because stdin=PIPE
        self.process.stdin.write(stage + "\n")
        self.process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        self.process.communicate()

    def _read(self) -> str:
        assert self.process.stdout is not None  # because stdout=PIPE
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError(f"a worker ended with code {self.process.returncode}")
        return line


def measure(versions: tuple[Version, ...], size: int, turns: int) -> dict[str, list[float]]:
    """Seconds of CPU time of each stage, for each version: the median over turns."""
    workers = [Worker(version, size) for version in versions]
    try:
        found: dict[str, list[float]] = {}
        for stage in workers[0].stages:
            for worker in workers:
                worker.measure(stage)  # warms the caches
            times = [[worker.measure(stage) for worker in workers] for _ in range(turns)]
            found[stage] = [statistics.median(column) for column in zip(*times, strict=True)]
    finally:
        for worker in workers:
            worker.close()
    return found


def rows(options: Options) -> Rows:
    """Rows for ``fedtern bench``: the compiled kernels, and those in NumPy as the peer."""
    if find_spec("fedtern.core.kernels.compiled") is None:
        yield Row("kernels", note="needs the compiled kernels, which are not installed")
        return
    size = 20_000 if options.quick else VGG11S
    sizes = (size, 10**8) if options.large else (size,)
    for values in sizes:
        where = "" if values == size else "10^8 values: "
        for stage, (native, numpy) in measure(OURS, values, 1 if options.quick else 11).items():
            if stage != ADD:
                yield Row(where + stage, "kernels in NumPy", 1e3 * native, 1e3 * numpy, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=VGG11S)
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--only", nargs="+", default=["native", "numpy"], help="our kernels")
    parser.add_argument("--also", nargs=3, action="append", default=[])
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.size)
        return
    versions = tuple(version for version in OURS if version.name in options.only)
    for name, python, source in options.also:
        environment = {**os.environ, "PYTHONPATH": source}
        environment.pop("FEDTERN_KERNELS", None)
        versions += (Version(name, python, environment),)
    found = measure(versions, options.size, options.turns)
    base = found.pop(ADD)
    names = [version.name for version in versions]
    print(f"{options.size:,} values; np.add takes {1e6 * base[0]:,.0f} us of CPU time.\n")
    heads = [*names, *(f"{name} / {names[0]}" for name in names[1:])]
    print("| stage, in multiples of np.add | " + " | ".join(heads) + " |")
    print("|---|" + "---:|" * len(heads))
    for stage, seconds in found.items():
        cells = [f"{value / base[0]:.3g}" for value in seconds]
        cells += [f"{value / seconds[0]:.3g}" for value in seconds[1:]]
        print(f"| {stage} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
