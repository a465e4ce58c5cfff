"""Rows of the benchmarks that are also scripts: codec, methods and traffic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import methods as methods_script
import traffic as traffic_script
from fedtern import sgd, stc
from fedtern.core.methods import METHODS
from rows import Options, Row, Rows, Target

HERE = Path(__file__).parent


def codec(options: Options) -> Rows:
    """Rows of `codec.py`: multiples of the addition of two vectors."""
    command = [sys.executable, str(HERE / "codec.py"), "--json"]
    command += ["--repeats", "20"] if options.quick else []
    command += ["--large"] if options.large else []
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    yield from _multiples(found["ratios"], "", _COMPRESS, _APPLY)
    for name, ratio in found["uneven"].items():
        if name != "np.add":
            note = "more non-zeros in some rows and columns"
            yield Row(name, _ADDITION, ratio, 1.0, "np.add", _ADAPTIVE.get(name), note)
    per_symbol = found["ratios"].get("torch step + Golomb by symbol")
    if per_symbol is not None:
        ours = found["ratios"]["compress + encode"]
        peer = "torch.topk with a per-symbol coder"
        yield Row("compress + encode", peer, ours, per_symbol, "np.add", Target("<=", 1 / 15))
    yield Row("bytes of an update", "float32", found["bytes"], 4.0 * found["size"], "bytes")
    if "large" in found:
        yield from _multiples(found["large"]["ratios"], "10^8 values: ", _LARGE, None)


_COMPRESS = Target("<=", 2.5)
_LARGE = Target("<=", 1.8)
_APPLY = Target("<=", 0.5)
_ADAPTIVE = {
    "adaptive: encode": Target("<=", 3),
    "adaptive: decode": Target("<=", 3),
    "adaptive: compress + encode": Target("<=", 4),
}
_ADDITION = "np.add of two such vectors"


def _multiples(
    ratios: dict[str, float], where: str, compress: Target, apply: Target | None
) -> Rows:
    targets = {"compress + encode": compress, "decode + apply": apply}
    for name, ratio in ratios.items():
        if name != "np.add":
            goal = targets.get(name)
            yield Row(where + name, _ADDITION, float(ratio), 1.0, "np.add", goal)


def methods(options: Options) -> Rows:
    """Rows of `methods.py`, one per direction and method."""
    layout = traffic_script.vgg11s()
    for name in ("stc", "topk", "signsgd") if options.quick else METHODS:
        found = methods_script.measure(name, layout, 2 if options.quick else 7)
        for stage, key in (("compress + encode", "encode"), ("decode + apply", "decode")):
            ms = float(found[f"{key}_ms"])
            adds = float(found[f"{key}_adds"])
            yield Row(f"{name}: {stage}", _ADDITION, ms, ms / adds, "ms")


def traffic(options: Options) -> Rows:
    """Rows of `traffic.py` for STC."""
    layout = traffic_script.vgg11s()
    ours = traffic_script.measure("stc", stc(), layout, 0)
    dense = traffic_script.measure("sgd", sgd(), layout, 0)
    for name, key in (("up", "up"), ("down", "down"), ("down, after 10 rounds away", "after_lag")):
        peer = "uncompressed"
        yield Row(f"STC {name}", peer, getattr(ours, key), getattr(dense, key), "bytes")
