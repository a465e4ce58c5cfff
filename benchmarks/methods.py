"""Time of each method on one core, for the 865,482 values of VGG11*.

`python benchmarks/methods.py` prints the median time to compress and encode an update, and to
decode it, also as a multiple of the addition of two such vectors in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np

from fedtern import Layout
from fedtern.core.feedback import EMPTY
from fedtern.core.methods import METHODS
from traffic import vgg11s


def measure(name: str, layout: Layout, rounds: int) -> dict[str, float | str | int]:
    """Medians over all rounds but the first two, which warm up."""
    method = METHODS[name]()
    rng = np.random.default_rng(0)
    up = method.up
    state = EMPTY
    encoded = []
    decoded = []
    added = []
    length = 0
    other = rng.standard_normal(layout.size, np.float32)
    for _ in range(rounds + 2):
        delta = (0.01 * rng.standard_t(4, layout.size)).astype(np.float32)
        begin = time.perf_counter()
        update, state = up.feedback.step(delta, state, layout, rng)
        data = up.codec.encode(update, layout)
        encoded.append(time.perf_counter() - begin)
        out = np.zeros(layout.size, np.float32)
        begin = time.perf_counter()
        up.codec.decode(data, layout).add_to(out)
        middle = time.perf_counter()
        np.add(out, other, out=out)
        decoded.append(middle - begin)
        added.append(time.perf_counter() - middle)
        length = len(data)
    base = float(np.median(added[2:]))
    return {
        "method": name,
        "encode_ms": 1e3 * float(np.median(encoded[2:])),
        "decode_ms": 1e3 * float(np.median(decoded[2:])),
        "encode_adds": float(np.median(encoded[2:])) / base,
        "decode_adds": float(np.median(decoded[2:])) / base,
        "bytes": length,
        "bits_a_parameter": 8 * length / layout.size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # limits BLAS to one core too
    layout = vgg11s()
    rows = [measure(name, layout, options.rounds) for name in options.methods]
    if options.json:
        print(json.dumps(rows))
        return
    print(
        f"{'method':18} {'compress + encode':>21} {'decode + apply':>20}{'bytes':>11} {'bits':>7}"
    )
    for row in rows:
        print(
            f"{row['method']:18} {row['encode_ms']:9.1f} ms ({row['encode_adds']:5.1f}x)"
            f" {row['decode_ms']:9.1f} ms ({row['decode_adds']:4.1f}x)"
            f" {row['bytes']:10,} {row['bits_a_parameter']:7.3f}"
        )
    print("(x: multiple of np.add of two such vectors; bits: per parameter)")


if __name__ == "__main__":
    main()
