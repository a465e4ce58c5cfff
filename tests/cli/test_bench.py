"""``fedtern bench``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedtern.cli import app
from fedtern.cli import bench as command

ROOT = Path(__file__).parents[2]


def run(*arguments: str):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_list_prints_the_benchmarks_without_running_them():
    result = run("--list")
    assert result.exit_code == 0
    names = [line.split()[0] for line in result.output.splitlines()]
    assert {"simulation", "flower", "server", "memory", "growth", "peers", "codec"} <= {*names}
    assert list(json.loads(run("--list", "--json").stdout)["benchmarks"]) == names


def test_json_has_machine_and_rows_and_updates_the_results_page(tmp_path):
    result = run("traffic", "--quick", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["machine"]["cores"] >= 1
    up = found["rows"][0]
    assert up["benchmark"] == "traffic"
    assert up["ratio"] == up["ours"] / up["theirs"] < 1 / 1000
    assert "STC up" in result.stderr
    page = tmp_path / "page.md"
    json_file = tmp_path / "bench.json"
    body = "### traffic\n\nold\n\n### peers\n\nolder\n"
    page.write_text(f"above\n<!-- measured: begin -->\n\n{body}\n<!-- measured: end -->\nbelow\n")
    json_file.write_text(result.stdout)
    script = ROOT / "benchmarks" / "page.py"
    subprocess.run([sys.executable, str(script), str(page), str(json_file)], check=True)
    text = page.read_text()
    assert text.startswith("above\n")
    assert text.endswith("below\n")
    assert "old\n" not in text
    assert "### peers\n\nolder\n" in text  # not measured, so not replaced
    assert "| STC up |" in text


def test_unknown_benchmark_suggests_the_nearest_name():
    result = run("sever")
    assert result.exit_code == 1
    assert "Did you mean 'server'" in result.stderr


def test_without_the_source_tree_the_error_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_ROOTS", (tmp_path,))
    result = run("--list")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "source tree" in result.stderr


def test_failed_benchmark_is_a_row_and_does_not_stop_the_others(tmp_path, monkeypatch):
    suite = tmp_path / "benchmarks" / "suite.py"
    suite.parent.mkdir()
    row = {"name": "x", "peer": "", "ours": 1.0, "theirs": 2.0, "unit": "ms", "ratio": 0.5}
    target = {"sense": "<=", "bound": 0.4, "of": "ratio"}
    rest = {"target": target, "reached": False, "note": "failed: no", "points": [], "failed": True}
    answers = {
        "--list": {"benchmarks": {"one": "", "two": ""}, "machine": {}},
        "one": {**row, **rest},
    }
    answers["two"] = {**row, "target": None, "reached": None, "note": "", "points": []}
    suite.write_text(
        f"import json, sys\nprint(json.dumps({answers!r}[sys.argv[1]]))\n", encoding="utf-8"
    )
    monkeypatch.setattr(command, "_ROOTS", (tmp_path,))
    result = run()
    assert result.exit_code == 1
    assert "failed: no" in result.output
    assert "<= 0.4 NO" in result.output
    assert result.output.splitlines()[-1].startswith("  x")


@pytest.mark.parametrize("value", [0.00123, 5.0, 1234.5])
def test_numbers_fit_their_column(value):
    assert len(command._format_number(value)) <= 8
