"""How long compressing and decoding take, in units of `residual += delta`.

Both are measured in turn, in one process on one core; what counts is the ratio of their medians:
`python benchmarks/codec.py`. With torch installed, `torch.topk` on the same vector stands beside.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import numpy as np

import fedtern
from fedtern.codecs import TernaryCodec
from fedtern.compressors import SparseTernary
from fedtern.layout import Layout
from fedtern.memory import EMPTY, ErrorFeedback, State

VGG11S = 865_482


class Compression:
    """One side of a link, fed with a new delta each time, as in training."""

    def __init__(self, size: int, p: float, rng: np.random.Generator) -> None:
        self.layout = Layout.flat(size)
        self.memory, self.codec = ErrorFeedback(SparseTernary(p)), TernaryCodec()
        self.state: State = EMPTY
        self.rng = rng
        self.deltas = [rng.standard_normal(size).astype(np.float32) for _ in range(4)]
        self.turn = 0
        self.delta = self.deltas[0].copy()

    def prepare(self) -> None:
        """Not timed: a delta is used up by the step that sends it."""
        self.turn += 1
        self.delta = self.deltas[self.turn % len(self.deltas)].copy()

    def step(self) -> bytes:
        """Accumulate, select, ternarise, keep the residual, encode."""
        update, self.state = self.memory.step(self.delta, self.state, self.layout, self.rng)
        return self.codec.encode(update, self.layout)


def measure(
    tasks: dict[str, tuple[Callable[[], object], Callable[[], object]]], repeats: int
) -> dict[str, float]:
    """Median seconds of each task; they take turns, so that all see the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(repeats + 3):
        for name, (prepare, run) in tasks.items():
            prepare()
            begin = time.perf_counter()
            run()
            if turn >= 3:  # the first ones compile and warm the caches
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}


def torch_tasks(
    x: np.ndarray, k: int
) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    try:
        import torch
    except ModuleNotFoundError:
        return {}
    torch.set_num_threads(1)
    magnitudes = torch.from_numpy(np.abs(x))
    return {"torch.topk alone": (lambda: None, lambda: torch.topk(magnitudes, k))}


def run(size: int, p: float, repeats: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    ours = Compression(size, p, rng)
    residual, delta = ours.deltas[0].copy(), ours.deltas[1]
    data = ours.step()
    weights = np.zeros(size, np.float32)
    nothing = lambda: None  # noqa: E731
    tasks: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "np.add": (nothing, lambda: np.add(residual, delta, out=residual)),
        "compress + encode": (ours.prepare, ours.step),
        "decode": (nothing, lambda: ours.codec.decode(data, ours.layout)),
        "decode + apply": (nothing, lambda: ours.codec.decode(data, ours.layout).add_to(weights)),
    }
    tasks |= torch_tasks(residual, max(int(size * p), 1))
    return measure(tasks, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=VGG11S)
    parser.add_argument("--p", type=float, default=1 / 400)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    seconds = run(options.size, options.p, options.repeats)
    x = np.random.default_rng(0).standard_normal(options.size)
    nbytes = len(fedtern.compress(x, options.p))
    base = seconds["np.add"]
    ratios = {name: value / base for name, value in seconds.items()}
    if options.json:
        print(json.dumps({"size": options.size, "p": options.p, "bytes": nbytes, "ratios": ratios}))
        return
    smaller = 4 * options.size / nbytes
    print(f"{options.size:,} values, p = {options.p:g}: {nbytes:,} bytes, float32 / {smaller:,.0f}")
    for name, value in seconds.items():
        print(f"{name:20} {1e6 * value:10.1f} us {ratios[name]:8.2f} x np.add")


if __name__ == "__main__":
    main()
