"""``fedtern tune``."""

from __future__ import annotations

import json
import shlex
import signal

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from typer.testing import CliRunner

from fedtern.cli import app
from fedtern.tuning.search import search

QUICK = [
    "--clients", "10", "--participation", "1/2", "--iterations", "60", "--budget", "30",
    "--rungs", "2", "--evaluate-every", "3", "--local-steps", "1", "--p-up", "1/5,1/50",
    "--seeds", "1", "--workers", "0",
]  # fmt: skip


def tune(*arguments: str):
    return CliRunner().invoke(app, ["tune", *arguments])


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The output of a search, and its directory."""
    out = tmp_path_factory.mktemp("tune") / "tuning"
    return tune(*QUICK, "--out", str(out)), out


@pytest.fixture(scope="module")
def as_json(shared):
    """What --json prints for the same search."""
    result = tune(*QUICK, "--out", str(shared[1]), "--json")
    (line,) = result.stdout.splitlines()
    return json.loads(line), result.stderr


def test_the_table_has_a_row_for_each_candidate_and_the_rung_that_dropped_it(shared, as_json):
    result, _ = shared
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    columns = "p_up p_down best accuracy iterations up down until dropped"
    assert all(name in lines[0] for name in columns.split())
    rows = [line for line in lines if line.lstrip().startswith("1/")]
    dropped = [row["dropped_after_rung"] for row in as_json[0]["candidates"]]
    assert len(rows) == len(dropped) == 4
    assert [row.rstrip().endswith("rung 1") for row in rows] == [each == 1 for each in dropped]
    assert dropped.count(1) == 2


def test_progress_names_rung_and_run_on_standard_error(shared):
    result, _ = shared
    assert "rung 1 of 2, run 4 of 4: p_up=1/50 p_down=1/100: " in result.stderr
    assert "rung 2 of 2, run 2 of 2: " in result.stderr


def test_json_is_one_object_with_the_recommendation_and_no_progress(as_json):
    found, progress = as_json
    assert progress == ""
    assert found["method"] == found["candidates"][0]["method"]
    assert found["method"].startswith("stc:p_up=1/")
    assert found["method"].endswith("codec=adaptive,magnitudes=powers")
    assert found["rungs"] == [9, 30]
    assert found["minimise"] == "bytes up + bytes down"


def test_the_printed_command_continues_the_recommended_run(shared, as_json, monkeypatch):
    result, out = shared
    found, _ = as_json
    last = result.stdout.splitlines()[-1]
    assert last == f"train it in full: {found['command']}"
    digest = found["candidates"][0]["experiment"]
    before = (out / digest / "metrics.jsonl").read_text()
    command = shlex.split(found["command"])
    assert command[:2] == ["fedtern", "run"]
    done = CliRunner().invoke(app, command[1:])
    assert done.exit_code == 0
    assert f"saved to {out / digest}" in done.stdout
    after = (out / digest / "metrics.jsonl").read_text()
    assert after.startswith(before)
    assert json.loads(after.splitlines()[-1])["iteration"] == 60


def test_every_option_of_the_environment_is_in_the_printed_command(tmp_path):
    options = [
        "--clients", "12", "--participation", "1/2", "--split", "dirichlet", "--concentration",
        "0.3", "--batch-size", "7", "--learning-rate", "0.05", "--momentum", "0.5", "--seed", "4",
        "--dp-clip", "1", "--dp-noise", "0.5",
    ]  # fmt: skip
    short = ["--iterations", "20", "--budget", "20", "--rungs", "1", "--evaluate-every", "5"]
    grid = ["--local-steps", "1,2", "--p-up", "1/5", "--p-down", "1/5", "--scope", "tensor"]
    out = ["--out", str(tmp_path), "--seeds", "1", "--workers", "0"]
    found = json.loads(tune(*options, *short, *grid, *out, "--json").stdout)
    done = CliRunner().invoke(app, [*shlex.split(found["command"])[1:], "--json"])
    assert done.exit_code == 0
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["run"] == str(tmp_path / found["candidates"][0]["experiment"])


def test_ctrl_c_says_how_to_continue(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return search(*arguments, **options)

    monkeypatch.setattr("fedtern.tuning.search", interrupted)
    result = tune(*QUICK, "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "stopped; the same command continues" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["logistic-digit"], "Unknown task 'logistic-digit'. Did you mean 'logistic-digits'"),
        (["--method", "signsgd"], "method 'signsgd' has none of the parameters local_steps, p_up"),
        (["--p-up", ""], "expected a number or a fraction like 1/400, got ''"),
        (["--local-steps", ""], "expected a whole number, got ''"),
        (["--local-steps", "1,x"], "expected a whole number, got 'x'"),
        (["--p-up", "1/25,2"], "p_up must be fractions in (0, 1], got 2.0"),
        (["--p-down", "0"], "p_down must be fractions in (0, 1], got 0.0"),
        (["--budget", "40"], "budget 40 is too small"),
        (["--budget", "5000"], "budget must be from 1 to 1000, the iterations of a full run"),
        (["--target", "90"], "target must be an accuracy in (0, 1], got 90; write 0.9 for 90 %"),
        (["--minimise", "byte"], "Unknown objective 'byte'. Did you mean 'bytes'"),
        (["--delta", "0.1"], "method 'stc' has no parameter 'delta'"),
        (["--method", "stc:scope=model", "--scope", "tensor"], "--scope tensor contradicts"),
        (["--split", "iid", "--classes-per-client", "2"], "does not apply to split"),
    ],
)
def test_bad_input_is_one_sentence_and_trains_nothing(arguments, message, tmp_path):
    result = tune(*arguments, "--out", str(tmp_path / "tuning"))
    assert result.exit_code in (1, 2)
    flat = " ".join(result.stderr.replace("│", " ").split())
    assert message in flat
    assert "Traceback" not in flat
    assert not (tmp_path / "tuning").exists()
