"""``examples/mqtt/numpy_client.py``: clients that need only NumPy and aiomqtt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "mqtt" / "numpy_client.py"
HEAVY = ("torch", "numba", "sklearn", "matplotlib", "typer", "rich", "prometheus_client")

# Not ru_maxrss, which includes the memory of the process that started this one.
MEASURED = f"""
import runpy, sys
sys.argv = {[str(EXAMPLE)]!r} + sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("imported", *(name for name in {HEAVY!r} if name in sys.modules))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


def start(*arguments: object) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_client_with_numpy_alone_takes_at_most_80_mb(mosquitto):
    broker = ("--broker", f"mqtt://127.0.0.1:{mosquitto.port}")
    server = start(*broker, "serve", "--clients", 3, "--rounds", 100)
    clients = [start(*broker, "join", number) for number in range(3)]
    try:
        outputs = [process.communicate(timeout=100)[0] for process in (server, *clients)]
    finally:
        for process in (server, *clients):
            process.kill()
            process.wait()
    *_, last_round, weights, imported, _ = outputs[0].splitlines()
    assert last_round.startswith("round 100: accuracy ")
    assert float(last_round.split()[-1].rstrip("%")) > 85
    for output in outputs[1:]:
        *_, weights_of_client, imported, peak_kib = output.splitlines()
        assert weights_of_client == weights
        assert imported == "imported"
        assert int(peak_kib) <= 80_000
