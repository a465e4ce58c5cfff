"""Time to compress and decode an update, in units of `residual += delta`.

`python benchmarks/codec.py` prints ratios of medians. All tasks take turns in one process on one
core. `--large` adds a run with 10^8 values, which takes 3 GB and minutes.

Peers: zlib on the gaps between the positions; with torch installed, `torch.topk` on the same
vector, and a complete step as it is often written: torch.topk, masks and means over all values, and
a Golomb coder that appends one character per bit. The server's round is Algorithm 2, from decoded
uploads to the bytes of the broadcast, and again from the bytes of the uploads.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from fedtern.core.codecs import AdaptiveCodec, TernaryCodec
from fedtern.core.codecs.codec import Codec
from fedtern.core.codecs.golomb import golomb_width
from fedtern.core.compressors import SparseTernary
from fedtern.core.feedback import EMPTY, ErrorFeedback, State
from fedtern.core.layout import Layout, Vector
from fedtern.core.methods.aggregation import Mean
from fedtern.core.updates import Ternary, Update
from traffic import vgg11s

VGG11S = 865_482
LARGE = 100_000_000
UPLOADS = 1000
SYMBOLS = 5000  # limit for the coder in Python; its time is scaled up to all symbols

Task = tuple[
    Callable[[], object], Callable[[], object]
]  # preparation (not timed), and the timed function


class Compression:
    """One side of a link that gets a new delta each time, as in training."""

    def __init__(
        self, layout: Layout, p: float, rng: np.random.Generator, codec: Codec | None = None
    ) -> None:
        self.layout = layout
        size = layout.size
        self.memory = ErrorFeedback(SparseTernary(p))
        self.codec = codec or TernaryCodec()
        self.state: State = EMPTY
        self.rng = rng
        several = 4 if size < LARGE // 10 else 2
        self.deltas = [rng.standard_normal(size, np.float32) for _ in range(several)]
        self.turn = 0
        self.delta = self.deltas[0].copy()

    def prepare(self) -> None:
        """Copy the next delta, untimed: a step overwrites its delta."""
        self.turn += 1
        self.delta = self.deltas[self.turn % len(self.deltas)].copy()

    def step(self) -> bytes:
        """Accumulate, select, ternarise, update the residual, encode."""
        update, self.state = self.memory.step(self.delta, self.state, self.layout, self.rng)
        return self.codec.encode(update, self.layout)


class Round:
    """A server that combines many uploads into one broadcast."""

    def __init__(self, size: int, p: float, rng: np.random.Generator) -> None:
        self.link = Compression(Layout.flat(size), p, rng)
        self.uploads: list[Update] = []
        for _ in range(UPLOADS):
            indices = np.unique(rng.integers(0, size, max(int(size * p), 1)))
            signs = rng.random(indices.size) < 0.5
            mu = rng.random(1, np.float32)
            self.uploads.append(Ternary(size, indices, signs, mu))
        self.data = [self.link.codec.encode(update, self.link.layout) for update in self.uploads]

    def answer(self) -> bytes:
        """Return the broadcast for decoded uploads."""
        self.link.delta = Mean().combine(self.uploads, [1] * UPLOADS)
        return self.link.step()

    def answer_bytes(self) -> bytes:
        """Return the broadcast for the bytes of the uploads."""
        self.uploads = [self.link.codec.decode(data, self.link.layout) for data in self.data]
        return self.answer()


def measure(tasks: dict[str, Task], repeats: int) -> dict[str, float]:
    """Median seconds of each task. Tasks take turns, so that machine load affects all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    warmup = min(3, repeats)
    for turn in range(repeats + warmup):
        for name, (prepare, run) in tasks.items():
            prepare()
            begin = time.perf_counter()
            run()
            if turn >= warmup:  # the first repeats warm the caches
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}


def nothing() -> None:
    pass


def write_symbols(gaps: list[int], positive: list[bool], width: int) -> str:
    """Algorithm 3 in plain Python, one character per bit."""
    bits = []
    for gap, sign in zip(gaps, positive, strict=True):
        quotient, remainder = divmod(gap, 1 << width)
        bits.append("1" * quotient + "0" + format(remainder, f"0{width}b") + str(int(sign)))
    return "".join(bits)


def raw_gaps(update: Ternary) -> bytes:
    """Gaps between positions, four bytes each."""
    return (np.diff(update.indices, prepend=-1) - 1).astype(np.uint32).tobytes()


def others(x: Vector, p: float) -> dict[str, Task]:
    """Tasks of the peers."""
    k = max(int(x.size * p), 1)
    update = SparseTernary(p).compress(x, Layout.flat(x.size), np.random.default_rng(0))
    gaps = np.frombuffer(raw_gaps(update), np.uint32)
    width = golomb_width(k, x.size)
    few = gaps[:SYMBOLS].tolist(), update.signs[:SYMBOLS].tolist()
    tasks: dict[str, Task] = {
        "zlib of the gaps alone": (nothing, lambda: zlib.compress(raw_gaps(update))),
        "symbols": (nothing, lambda: write_symbols(*few, width)),
    }
    try:
        import torch
    except ModuleNotFoundError:
        return tasks
    torch.set_num_threads(1)
    residual = torch.from_numpy(x.copy())
    delta = torch.from_numpy(x)
    magnitudes = delta.abs()

    def ternarise() -> None:
        target = residual + delta
        threshold = torch.topk(target.abs(), k).values.min()
        mask = target.abs() >= threshold
        mu = target[mask].abs().mean()
        sent = mu * target.sign() * mask
        residual.copy_(target - sent)
        sent.nonzero()

    tasks["torch.topk alone"] = (nothing, lambda: torch.topk(magnitudes, k))
    tasks["torch step"] = (nothing, ternarise)
    return tasks


def uneven(layout: Layout, rng: np.random.Generator) -> Vector:
    """Return a factor for each value: some rows and columns of a tensor change more than others."""
    factors = []
    for shape in layout.shapes:
        rows = np.exp(rng.standard_normal((shape[0], 1), np.float32))
        columns = np.exp(rng.standard_normal((1, math.prod(shape[1:])), np.float32))
        factors.append((rows * columns).reshape(-1))
    return np.concatenate(factors)


def run_adaptive(p: float, repeats: int) -> dict[str, float]:
    """Time of the adaptive codec for VGG11*, and of Golomb on the same updates, by np.add."""
    rng = np.random.default_rng(0)
    layout = vgg11s()
    golomb = Compression(layout, p, rng)
    adaptive = Compression(layout, p, rng, AdaptiveCodec(TernaryCodec()))
    factors = uneven(layout, rng)
    golomb.deltas = adaptive.deltas = [delta * factors for delta in golomb.deltas]
    x = golomb.deltas[0]
    update = SparseTernary(p).compress(x, layout, rng)
    data = adaptive.codec.encode(update, layout)
    assert data[0] == AdaptiveCodec.id
    residual = x.copy()
    works: dict[str, Task] = {
        "np.add": (nothing, lambda: np.add(residual, x, out=residual)),
        "Golomb: encode": (nothing, lambda: golomb.codec.encode(update, layout)),
        "Golomb: compress + encode": (golomb.prepare, golomb.step),
        "adaptive: encode": (nothing, lambda: adaptive.codec.encode(update, layout)),
        "adaptive: decode": (nothing, lambda: adaptive.codec.decode(data, layout)),
        "adaptive: compress + encode": (adaptive.prepare, adaptive.step),
    }
    seconds = measure(works, repeats)
    return {name: value / seconds["np.add"] for name, value in seconds.items()}


def run(size: int, p: float, repeats: int) -> dict[str, Any]:
    """Time of each task as a multiple of np.add."""
    rng = np.random.default_rng(0)
    ours = Compression(Layout.flat(size), p, rng)
    residual = ours.deltas[0].copy()
    delta = ours.deltas[1]
    data = ours.step()
    weights = np.zeros(size, np.float32)
    add: dict[str, Task] = {"np.add": (nothing, lambda: np.add(residual, delta, out=residual))}
    tasks: dict[str, Task] = {
        "compress + encode": (ours.prepare, ours.step),
        "decode": (nothing, lambda: ours.codec.decode(data, ours.layout)),
        "decode + apply": (nothing, lambda: ours.codec.decode(data, ours.layout).add_to(weights)),
    }
    seconds = measure(add | tasks, repeats)
    ratios = {name: value / seconds["np.add"] for name, value in seconds.items()}
    beside = measure(add | others(delta, p), max(repeats // 30, 3))
    base = beside.pop("np.add")
    symbols = beside.pop("symbols") * max(max(int(size * p), 1) / SYMBOLS, 1)
    beside["Golomb by symbol alone"] = symbols
    if "torch step" in beside:
        beside["torch step + Golomb by symbol"] = beside.pop("torch step") + symbols
    ratios |= {name: value / base for name, value in beside.items()}
    return {
        "size": size,
        "p": p,
        "bytes": len(data),
        "zlib_bytes": len(zlib.compress(raw_gaps(TernaryCodec().decode(data, ours.layout)))),
        "add_us": 1e6 * seconds["np.add"],
        "ratios": ratios,
    }


def serve(size: int, p: float, repeats: int) -> dict[str, float]:
    """Milliseconds of a round on the server."""
    server = Round(size, p, np.random.default_rng(0))
    tasks: dict[str, Task] = {
        f"{UPLOADS:,} uploads, decoded": (nothing, server.answer),
        f"{UPLOADS:,} uploads, from bytes": (nothing, server.answer_bytes),
    }
    return {name: 1e3 * s for name, s in measure(tasks, max(repeats // 30, 3)).items()}


def show(found: dict[str, Any]) -> None:
    smaller = 4 * found["size"] / found["bytes"]
    print(
        f"{found['size']:,} values, p = {found['p']:g}: {found['bytes']:,} bytes, float32 /"
        f" {smaller:,.0f}; np.add takes {found['add_us']:,.0f} us"
    )
    print(f"zlib of the gaps, without signs: {found['zlib_bytes']:,} bytes")
    for name, ratio in found["ratios"].items():
        print(f"{name:30} {ratio:10.2f} x np.add")
    if "uneven" in found:
        print("an update with more non-zeros in some rows and columns:")
    for name, ratio in found.get("uneven", {}).items():
        print(f"{name:30} {ratio:10.2f} x np.add")
    for name, milliseconds in found.get("server_ms", {}).items():
        print(f"{name:30} {milliseconds:10.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=VGG11S)
    parser.add_argument("--p", type=float, default=1 / 400)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--large", action="store_true", help="add a run with 10^8 values")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found = run(options.size, options.p, options.repeats)
    if options.size == VGG11S:
        found["uneven"] = run_adaptive(options.p, options.repeats)
    found["server_ms"] = serve(options.size, options.p, options.repeats)
    if options.large:
        found["large"] = run(LARGE, options.p, max(options.repeats // 40, 3))
    if options.json:
        print(json.dumps(found))
        return
    for part in (found, found.get("large")):
        if part:
            show(part)


if __name__ == "__main__":
    main()
