"""Options of differential privacy on the command line."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("dp_accounting")
pytest.importorskip("torch")
pytest.importorskip("sklearn")

from typer.testing import CliRunner

from fedtern.cli.app import app
from fedtern.privacy import privacy_loss
from fedtern.report import write_report

SMALL = ["--clients", "10", "--participation", "1", "--iterations", "20", "--workers", "0"]


def fedtern(*arguments, code: int = 0):
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    return result


def test_a_run_reports_epsilon_and_stops_at_the_budget(tmp_path):
    budget = privacy_loss(4.0, 5, 1e-5) + 1e-9
    options = ["--dp-clip", "0.1", "--dp-noise", "4", "--dp-budget", budget]
    result = fedtern("run", "logistic-digits", *SMALL, *options, "--out", tmp_path)
    text = " ".join(result.output.split())
    assert "stopped after 5 rounds, because another round could exceed the privacy budget" in text
    assert f"epsilon {budget:.3g} (delta 1e-05)" in text
    assert "without amplification by sampling, because participation is public" in text
    (run,) = tmp_path.iterdir()
    config = json.loads((run / "config.json").read_text())
    assert config["privacy"] == {
        "clip": 0.1,
        "noise_multiplier": 4.0,
        "delta": 1e-5,
        "budget": budget,
        "model": "central",
    }
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["privacy"]["participations"] for row in rows] == [1, 2, 3, 4, 5]
    page = write_report([run], tmp_path / "report.html").read_text()
    assert "<td>central</td><td>0.1</td><td>4</td><td>5</td>" in page
    assert "no amplification by sampling" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dp-clip", "1"], "Differential privacy needs --dp-noise"),
        (["--dp-budget", "1"], "Differential privacy needs --dp-clip"),
        (["--dp-clip", "1", "--dp-noise", "-2"], "noise_multiplier must be positive"),
        (["--dp-clip", "1", "--dp-noise", "1", "--dp-delta", "0.1"], "must be less than 1/10"),
        (["--dp-clip", "1", "--dp-noise", "1", "--dp-model", "x"], '"central" or "local"'),
        (["--dp-clip", "1", "--dp-noise", "1", "--dp-budget", "0.1"], "allows no round"),
        (["--dp-clip", "1", "--dp-noise", "1", "--weighted"], "does not support weighted=True"),
    ],
)
def test_options_that_cannot_be_used_are_explained(tmp_path, options, message):
    result = fedtern("run", "logistic-digits", *SMALL, *options, "--out", tmp_path, code=1)
    assert message in " ".join(result.output.split())
