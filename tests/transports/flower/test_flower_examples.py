"""The Flower examples, run as a reader runs them."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED HERE: install the extra flower")

EXAMPLES = Path(__file__).parents[3] / "examples" / "flower"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_compressed_example_changes_one_line_per_app_and_imports():
    plain = EXAMPLES / "plain"
    compressed = EXAMPLES / "compressed"
    changed = []
    for path in sorted(plain.rglob("*.py")):
        other = compressed / path.relative_to(plain)
        lines = difflib.ndiff(path.read_text().splitlines(), other.read_text().splitlines())
        changed += [line for line in lines if line[0] in "+-"]
    imports = [line for line in changed if line.startswith(("+ from", "+ import"))]
    rest = [line.partition("=")[2].strip() for line in changed if line not in imports]
    assert rest[:2] == ["ClientApp()", "ClientApp(mods=[compression()])"]
    assert rest[2].startswith("Compressed(strategy, store=")
    assert len(rest) == 3
    assert len(imports) == 2


@pytest.mark.slow
def test_quickstart_keeps_the_accuracy_with_a_hundredth_of_the_bytes():
    plain, compressed, fewer = run("quickstart.py", "--p", "0.01").splitlines()[-3:]
    accuracy = [float(re.findall(r"([\d.]+)%", line)[0]) for line in (plain, compressed)]
    assert accuracy[0] > 95
    assert accuracy[1] > accuracy[0] - 1
    assert min(float(x) for x in re.findall(r"(\d+)x", fewer)) >= 100


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "least"), [(5, 6), (20, 10), (200, 20)])
def test_quickstart_with_default_settings_stays_within_two_points(rounds, least):
    plain, compressed, fewer = run("quickstart.py", "--rounds", str(rounds)).splitlines()[-3:]
    accuracy = [float(re.findall(r"([\d.]+)%", line)[0]) for line in (plain, compressed)]
    assert accuracy[1] > accuracy[0] - 2
    assert min(float(x) for x in re.findall(r"(\d+)x", fewer)) >= least


@pytest.mark.slow
def test_deployment_example_ends_all_of_its_processes(tmp_path):
    output = run("deployment.py", "--rounds", "1", "--directory", str(tmp_path))
    *_, row, last = output.splitlines()
    assert last == "all processes have ended"
    assert row.split()[0] == "1"
    assert running_in(tmp_path) == []


def running_in(directory: Path) -> list[str]:
    """Return the commands of running processes whose working directory is in a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            inside = Path(os.readlink(entry / "cwd")).is_relative_to(directory)
        except OSError:
            continue
        if command and inside:
            found.append(command)
    return found
