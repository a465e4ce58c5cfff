"""Performance of this transport, measured with ``benchmarks/mqtt.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from brokers import MOSQUITTO

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        MOSQUITTO is None, reason="NO MQTT BROKER: install mosquitto to run these tests"
    ),
]


def run_benchmark(*arguments: object) -> dict:
    command = [sys.executable, "benchmarks/mqtt.py", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    print(done.stdout)
    return json.loads(done.stdout)


def await_quiet(seconds: float) -> None:
    """Wait, at most this long, until no other program is busy on this machine."""
    end = time.monotonic() + seconds
    while os.getloadavg()[0] > 1 and time.monotonic() < end:
        time.sleep(5)


def test_vgg_traffic_is_a_thousandth_of_dense_with_at_most_150_bytes_overhead():
    found = run_benchmark("wire", "--clients", 4, "--rounds", 15)
    assert found["size"] == 865_482
    assert found["overhead"] <= 150
    assert min(found["times fewer"]) >= 1000


def test_a_thousand_clients_reach_five_rounds_per_second():
    """The best of four attempts, because the machine may be busy."""
    best = 0.0
    for _ in range(4):
        found = run_benchmark("load", "--rounds", 50)
        assert found["present"] == 1000
        assert found["counted"] == 5000
        best = max(best, found["rounds_per_second"])
        if best >= 5:
            break
        await_quiet(60)
    assert best >= 5


def test_the_memory_of_a_server_is_constant_over_ten_thousand_rounds():
    found = run_benchmark("memory")
    assert found["counted"] == 100_000
    tenths = found["mib"]
    # The history for catch-ups has reached its limit by the middle.
    assert max(tenths[5:]) - min(tenths[5:]) <= 1.0
    assert tenths[-1] - tenths[0] <= 16
