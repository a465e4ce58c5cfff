"""The benchmarks that are scripts of their own, by the suite's rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import methods as methods_script
import traffic as traffic_script
from fedtern import sgd, stc
from fedtern.methods import METHODS
from rows import Options, Row, Rows

HERE = Path(__file__).parent


def codec(options: Options) -> Rows:
    """Whatever `codec.py --json` reports as multiples of adding two vectors."""
    command = [sys.executable, str(HERE / "codec.py"), "--json"]
    command += ["--repeats", "20"] if options.quick else []
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for name, ratio in found["ratios"].items():
        if name != "np.add":
            yield Row(name, "np.add of two such vectors", float(ratio), 1.0, "np.add")
    yield Row("bytes of an update", "float32", found["bytes"], 4.0 * found["size"], "bytes")


def methods(options: Options) -> Rows:
    """`methods.py`, one row for each direction of each method."""
    layout = traffic_script.vgg11s()
    for name in ("stc", "topk", "signsgd") if options.quick else METHODS:
        found = methods_script.measure(name, layout, 2 if options.quick else 7)
        for stage, key in (("compress + encode", "encode"), ("decode + apply", "decode")):
            ms, adds = float(found[f"{key}_ms"]), float(found[f"{key}_adds"])
            yield Row(f"{name}: {stage}", "np.add of two such vectors", ms, ms / adds, "ms")


def traffic(options: Options) -> Rows:
    """`traffic.py`, for STC."""
    layout = traffic_script.vgg11s()
    ours = traffic_script.measure("stc", stc(), layout, 0)
    dense = traffic_script.measure("sgd", sgd(), layout, 0)
    for name, key in (("up", "up"), ("down", "down"), ("down, after 10 rounds away", "after_lag")):
        peer = "uncompressed"
        yield Row(f"STC {name}", peer, getattr(ours, key), getattr(dense, key), "bytes")
