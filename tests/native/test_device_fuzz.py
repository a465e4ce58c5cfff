"""The C client under sanitizers, with mutated golden messages (``native/fuzz.c``)."""

from __future__ import annotations

import subprocess

import pytest
from device_library import SANITIZERS, compile_c
from golden_file import write_golden_file


@pytest.fixture(scope="module")
def fuzz(library, tmp_path_factory):
    directory = tmp_path_factory.mktemp("fuzz")
    golden = write_golden_file(directory / "golden.bin", library)
    program = compile_c(
        directory / "fuzz", "fuzz.c", "device.c", flags=("-O1", *SANITIZERS), using="gcc"
    )
    return lambda iterations, seed: subprocess.run(
        [program, golden, str(iterations), str(seed)], capture_output=True, text=True, check=False
    )


def test_mutated_messages_find_no_fault(fuzz):
    result = fuzz(50_000, 0)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "50000 iterations, seed 0"
    # Mutations are gentle enough for some messages to be accepted, and reach most refusals.
    assert lines[1].endswith("no error")
    assert int(lines[1].split()[0]) > 5000
    assert len(lines) > 10


@pytest.mark.slow
def test_ten_million_mutated_messages_find_no_fault(fuzz):
    result = fuzz(10_000_000, 1)
    assert result.returncode == 0, result.stderr
    print(result.stdout)  # with -s
