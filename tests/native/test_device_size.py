"""The device client fits a microcontroller: its flash and RAM stay below the documented limits."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "device-size"
PAGE = ROOT / "docs" / "how-to" / "devices.md"


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, int]]:
    return measure("cortex-m4")


def measure(cpu: str) -> dict[str, dict[str, int]]:
    """Rows of both tables by their first cell, each as numbers by the head of their column."""
    if shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("this machine has no arm-none-eabi-gcc")
    command = [sys.executable, SCRIPT, "--cpu", cpu]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows: dict[str, dict[str, int]] = {}
    head: list[str] = []
    for line in output.splitlines():
        if not line.startswith("|"):
            head = []
            continue
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not head:
            head = cells
        elif not first.startswith("-"):
            numbers = [int(cell.replace(",", "")) for cell in cells]
            rows[first] = dict(zip(head, numbers, strict=True))
    return rows


def test_the_client_fits_a_cortex_m4(rows):
    assert 4_000 < rows["stc"]["flash"] <= 16 * 1024
    assert 4_000 < rows["all methods"]["flash"] <= 16 * 1024
    for methods in ("stc", "signsgd", "sgd, fedavg", "all methods"):
        assert 500 < rows[methods]["RAM besides vectors"] <= 2048
    # Two vectors and little else.
    assert rows["100,000"]["total"] < 8 * 100_000 + 2048


def test_the_guide_states_the_measured_sizes(rows):
    table = PAGE.read_text().split("| Cortex-M4, bytes |")[1].split("\n\n")[0]
    stated = re.findall(r"^\| (.+) \| ([\d,]+) \| ([\d,]+) \|$", table, flags=re.MULTILINE)
    assert len(stated) == 5
    for name, *numbers in stated:
        row = rows[name.replace("`", "")]
        measured = (row["flash"], row["RAM besides vectors"])
        for number, size in zip(numbers, measured, strict=True):
            assert int(number.replace(",", "")) == pytest.approx(size, rel=0.05)
