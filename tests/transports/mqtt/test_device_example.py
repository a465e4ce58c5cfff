"""``examples/device``: a C program takes part in a federation with Python clients."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "device"


@pytest.fixture
def program(tmp_path):
    """The C program, compiled as its README says; skipped where that is not possible."""
    pytest.importorskip("sklearn")
    if (compiler := shutil.which("gcc")) is None:
        pytest.skip("this machine has no gcc")
    path = tmp_path / "digits_client"
    sources = (EXAMPLE / "digits_client.c", ROOT / "native" / "device.c")
    flags = ("-std=c99", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Wconversion", "-Werror")
    probe = subprocess.run(
        [compiler, "-E", "-"], input="#include <mosquitto.h>\n", text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip("this machine has no libmosquitto-dev")
    libraries = ("-lmosquitto", "-lm", "-o", path)
    subprocess.run([compiler, *flags, f"-I{ROOT / 'native'}", *sources, *libraries], check=True)
    python("data", tmp_path / "device.bin").communicate()
    return path


def python(*arguments: object) -> subprocess.Popen:
    """Start the Python side, with the sources of this repository."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(EXAMPLE / "federation.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def run_federation(mosquitto, program, tmp_path, start_at, *options: object, kill_at=None):
    """Run both sides; start the C program when the server reaches a round."""
    server = python(
        "run", "--host", "127.0.0.1", "--port", mosquitto.port,
        "--output", tmp_path / "server.bin", *options,
    )  # fmt: skip
    arguments = ("device.bin", "127.0.0.1", mosquitto.port, "digits", 7, "client.bin")

    def start() -> subprocess.Popen:
        command = [str(program), *map(str, arguments)]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    device = start() if start_at == 0 else None
    try:
        lines = []
        for line in server.stdout:
            lines.append(line)
            if line.startswith(f"round {start_at}:"):
                device = start()
            if kill_at is not None and line.startswith(f"round {kill_at}:"):
                device.kill()
                device.wait()
                device.stdout.close()
                device = start()
        output, _ = device.communicate(timeout=60)
        assert server.wait(60) == 0
        assert device.returncode == 0
    finally:
        for process in (server, device):
            if process is not None:
                process.kill()
                process.wait()
                process.stdout.close()
    ours, theirs = ((tmp_path / f"{side}.bin").read_bytes() for side in ("client", "server"))
    assert len(ours) == 4 * 650
    assert np.frombuffer(theirs, "<f4").any()
    assert ours == theirs
    return lines, output


def test_c_program_ends_with_the_weights_of_the_server(mosquitto, program, tmp_path):
    lines, output = run_federation(mosquitto, program, tmp_path, 0, "--rounds", 40)
    assert lines[-1] == "40 uploads of the C program counted\n"
    assert output == "the federation ended at round 40; 40 uploads\n"
    accuracy = float(lines[-2].split()[3].rstrip("%,"))
    assert accuracy > 75


def test_c_program_that_joins_late_or_was_killed_catches_up(mosquitto, program, tmp_path):
    options = ("--rounds", 120, "--min-clients", 2, "--pause", 0.02)
    lines, output = run_federation(mosquitto, program, tmp_path, 10, *options, kill_at=40)
    assert output.startswith("caught up from round 0 to ")
    assert int(lines[-1].split()[0]) > 10
