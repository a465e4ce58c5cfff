"""All benchmarks by name. ``fedtern bench`` runs this file once for each benchmark.

`python benchmarks/suite.py NAME` prints each row as a line of JSON when it is measured.
`python benchmarks/suite.py --list` prints the benchmarks and a description of the machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from fedtern.core.kernels import describe_kernels
from rows import Options, Row, Rows


class Benchmark(NamedTuple):
    about: str
    module: str
    function: str = "rows"


BENCHMARKS = {
    "simulation": Benchmark("rounds of the simulator / training alone", "simulation"),
    "flower": Benchmark("rounds of the simulator / Flower's simulation, uncompressed", "flower"),
    "server": Benchmark("a round with 1 to 1,000 uploads on the server / dense sums", "server"),
    "memory": Benchmark("memory of 1,000 clients, and of 10,000 within 4 GiB", "memory"),
    "growth": Benchmark("growth of each stage with size, sparsity and cohort", "growth"),
    "peers": Benchmark("sizes and times / zlib, zstd and DeepCABAC", "peers"),
    "codec": Benchmark("compress and decode / addition of two vectors", "scripts", "codec"),
    "bytes": Benchmark("real messages and catch-ups / Golomb, zlib, zstd", "message_bytes"),
    "kernels": Benchmark("stages with the compiled kernels / with those in NumPy", "kernels"),
    "methods": Benchmark("codec of every method / addition of two vectors", "scripts", "methods"),
    "mqtt": Benchmark("1,000 clients on a broker: rounds and bytes on the wire", "mqtt"),
    "traffic": Benchmark("bytes per round / uncompressed training", "scripts", "traffic"),
}


def measure(name: str, options: Options) -> Rows:
    """Yield the rows of a benchmark, or one row that names a missing package."""
    benchmark = BENCHMARKS[name]
    try:
        rows = getattr(importlib.import_module(benchmark.module), benchmark.function)
        yield from rows(options)
    except ModuleNotFoundError as error:
        yield Row(name, note=f"needs {error.name}, which is not installed")


def machine() -> dict[str, object]:
    """Description of this machine."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": _cpu(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: _version(package) for package in ("fedtern", "numpy", "torch")},
        "kernels": describe_kernels(),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=list(BENCHMARKS))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--large", action="store_true")
    given = parser.parse_args()
    if given.list or given.name is None:
        names = {name: benchmark.about for name, benchmark in BENCHMARKS.items()}
        print(json.dumps({"benchmarks": names, "machine": machine()}))
        return
    try:
        for row in measure(given.name, Options(given.quick, given.large)):
            print(json.dumps({"benchmark": given.name, **row.to_json()}), flush=True)
    except Exception as error:
        traceback.print_exc()
        row = Row(given.name, note=f"failed: {type(error).__name__}: {error}")
        print(json.dumps({"benchmark": given.name, **row.to_json(), "failed": True}), flush=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
