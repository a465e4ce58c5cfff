"""The C client gives the same bits on other processors, in the emulator of QEMU."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from device_library import SANITIZERS, compile_c
from golden_file import write_golden_file

TARGETS = {
    "arm": ("arm-linux-gnueabihf-gcc", "qemu-arm", "little-endian machine with 32-bit"),
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64", "little-endian machine with 64-bit"),
    "powerpc": ("powerpc-linux-gnu-gcc", "qemu-ppc", "big-endian machine with 32-bit"),
    "s390x": ("s390x-linux-gnu-gcc", "qemu-s390x", "big-endian machine with 64-bit"),
}


@pytest.fixture(scope="module")
def golden(library, tmp_path_factory):
    return write_golden_file(tmp_path_factory.mktemp("golden") / "golden.bin", library)


def passed(*command: object) -> str:
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("flags", [("-O2",), ("-O0", *SANITIZERS)], ids=["O2", "sanitizers"])
def test_golden_steps_pass_on_this_machine(golden, tmp_path, flags):
    program = compile_c(tmp_path / "check", "golden_check.c", "device.c", flags=flags)
    assert " steps passed on a " in passed(program, golden)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("optimize", ["-O0", "-Os", "-O3"])
def test_golden_steps_pass_on_another_processor(golden, tmp_path, target, optimize):
    using, emulator, machine = TARGETS[target]
    for tool in (using, emulator):
        if shutil.which(tool) is None:
            pytest.skip(f"this machine has no {tool}")
    program = compile_c(
        tmp_path / "check", "golden_check.c", "device.c", flags=("-static", optimize), using=using
    )
    assert machine in passed(emulator, program, golden)


def test_a_difference_of_one_bit_is_found(golden, tmp_path):
    """The program that checks can fail."""
    program = compile_c(tmp_path / "check", "golden_check.c", "device.c", flags=("-O1",))
    data = bytearray(golden.read_bytes())
    data[-1000] ^= 1  # in the weights of the last steps
    (tmp_path / "changed.bin").write_bytes(data)
    result = subprocess.run(
        [program, tmp_path / "changed.bin"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "case " in result.stderr
