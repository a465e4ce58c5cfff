"""Time and memory of a model of named arrays: one client and one server, step by step.

Memory is in vectors: multiples of the trained parameters in float32. "peak" is the most that a step
needed beyond the memory before it, "kept" is what it left. The model itself is not counted, nor is
the training. Linux with glibc only: other systems do not tell the peak of a part of a process.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fedtern import Client, DurableClient, Server, Store, Template, stc
from fedtern.core.protocol.initial import Precision


def memory(field: str) -> int:
    """Return a field of ``/proc/self/status``, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


class Steps:
    """Measures steps; ``rows`` has name, seconds, peak and kept of each."""

    def __init__(self, vector: int) -> None:
        self.vector = vector
        self.rows: list[tuple[str, float, float, float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # or a step could reuse freed memory unseen
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = memory("VmRSS")
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        peak = (memory("VmHWM") - before) / self.vector
        kept = (memory("VmRSS") - before) / self.vector
        self.rows.append((name, seconds, peak, kept))


def model_of(size: int, dtype: str) -> dict[str, NDArray[Any]]:
    """Return layers of a million weights, with statistics, of about this size."""
    rng = np.random.default_rng(0)
    side = min(1000, int(size**0.5))
    layers = max(1, size // side**2)
    noise = rng.standard_normal((side, side), np.float32)
    model: dict[str, NDArray[Any]] = {}
    for i in range(layers):
        model[f"{i}.weight"] = (noise * np.float32(1 + i / layers)).astype(dtype)
        model[f"{i}.running_mean"] = np.zeros(side, np.float32)
        model[f"{i}.num_batches_tracked"] = np.array(0)
    return model


def measure(size: int, dtype: str, initial: Precision) -> tuple[int, Steps]:
    """Run two rounds and measure each step."""
    model = model_of(size, dtype)
    template = Template.of(model)
    steps = Steps(4 * template.layout.size)
    method = stc(p_up=1 / 400, p_down=1 / 400)
    with steps.step("Template.split"):
        parts = template.split(model)
    with steps.step("Template.join"):
        joined = template.join(parts.weights, parts.carried)
    for name, array in joined.items():
        joined[name] = np.add(array, 1).astype(array.dtype)
    with steps.step("Template.delta"):
        delta = template.delta(joined, parts.weights)
    del parts, delta
    with steps.step("Server.from_arrays"):
        server = Server.from_arrays(model, method, initial=initial)
    with steps.step("Client.from_arrays"):
        client = Client.from_arrays(0, model, method, initial=initial)
    with steps.step("Client.send_arrays"):
        client.send_arrays(joined)
    with steps.step("Server.receive"):
        server.receive(0, client.pending or b"")
    with steps.step("Server.finish_round"):
        broadcast = server.finish_round()
    with steps.step("Client.receive"):
        client.receive(broadcast.data)
    joined = {}
    with steps.step("Client.arrays"):
        joined = client.arrays
    for name, array in joined.items():
        joined[name] = np.add(array, 1).astype(array.dtype)
    with steps.step("Client.send_arrays, round 2"):
        client.send_arrays(joined)
    with steps.step("Server.catch_up of a new client"):
        catch_up = server.catch_up(1, -1)
    newcomer = Client.from_arrays(1, model, method, is_initial=False)
    with steps.step("Client.receive of a whole model"):
        newcomer.receive(catch_up.data)
    del newcomer, catch_up
    server.receive(0, client.pending or b"")
    client.receive(server.finish_round().data)
    with tempfile.TemporaryDirectory() as directory, Store(Path(directory)) as store:
        durable = DurableClient(client, store)
        with steps.step("DurableClient.send_arrays"):
            durable.send_arrays(joined)
    return template.layout.size, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000_000, help="Number of parameters.")
    dtypes = ("float16", "float32", "float64")
    parser.add_argument("--dtype", default="float32", choices=dtypes, help="Dtype of the arrays.")
    parser.add_argument(
        "--initial",
        default="exact",
        choices=get_args(Precision),
        help="Precision of the initial model.",
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    options = parser.parse_args()
    size, steps = measure(options.size, options.dtype, options.initial)
    if options.json:
        rows = {name: rest for name, *rest in steps.rows}
        print(json.dumps({"size": size, "vector_bytes": steps.vector, "steps": rows}))
        return
    print(f"{size:,} parameters, {options.dtype}; a vector is {steps.vector / 1e6:,.0f} MB")
    print("| step | seconds | peak, vectors | kept, vectors |\n|---|---:|---:|---:|")
    for name, seconds, peak, kept in steps.rows:
        print(f"| `{name}` | {seconds:.2f} | {peak:.2f} | {kept:.2f} |")


if __name__ == "__main__":
    main()
