"""``--aggregate`` of ``fedtern run`` and ``compare``."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from typer.testing import CliRunner

from fedtern.cli import app
from fedtern.report import write_report

QUICK = ["--iterations", "20", "--evaluate-every", "10", "--clients", "10"]
QUICK += ["--participation", "1/2", "--workers", "0"]
FEDAVG = ["--method", "fedavg:local_steps=5"]
PRIVACY = ["--dp-clip", "1", "--dp-noise", "1"]


@pytest.fixture
def fedtern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("method", "option", "stored"),
    [
        ("fedavg:local_steps=5", "median", "median"),
        ("fedavg:local_steps=5", "trimmed-mean", "trimmed-mean:0.1"),
        ("grid", "krum:1", "krum:1"),
        ("stc", "clip:1/4", "clip:0.25"),
    ],
)
def test_the_aggregation_is_stored_and_shown(fedtern, tmp_path, method, option, stored):
    result = fedtern("run", "--method", method, "--aggregate", option, *QUICK)
    assert result.exit_code == 0, result.output
    assert f" aggregate={stored}: accuracy" in result.stdout
    (path,) = (tmp_path / "runs").iterdir()
    config = json.loads((path / "config.json").read_text())
    assert config["method"]["aggregate"] == stored
    assert f"aggregate={stored}" in write_report([path], tmp_path / "report.html").read_text()
    # The same text as a parameter of the method is the same run, which is finished.
    separator = "," if ":" in method else ":"
    text = f"{method}{separator}aggregate={option}"
    again = fedtern("run", "--method", text, *QUICK, "--resume")
    assert again.exit_code == 0, again.output
    assert [each.name for each in (tmp_path / "runs").iterdir()] == [path.name]
    # Another aggregation is another run.
    assert fedtern("run", "--method", method, "--aggregate", "mean", *QUICK).exit_code == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_aggregations_give_different_models(fedtern):
    sweep = ("--aggregate", "mean,median,trimmed-mean:0.2,krum:1,clip:0.1", "--json")
    result = fedtern("compare", "fedavg:local_steps=5", *sweep, *QUICK)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout.splitlines()[-1])["runs"]
    assert [row["method"].removeprefix("fedavg local_steps=5").strip() for row in rows] == [
        "",
        "aggregate=median",
        "aggregate=trimmed-mean:0.2",
        "aggregate=krum:1",
        "aggregate=clip:0.1",
    ]
    assert len({row["loss"] for row in rows}) == 5


def test_local_differential_privacy_combines_with_the_median(fedtern):
    pytest.importorskip("dp_accounting")
    options = ("--aggregate", "median", *PRIVACY, "--dp-model", "local")
    assert fedtern("run", *FEDAVG, *options, *QUICK).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", *FEDAVG, "--aggregate", "medain"], "Unknown aggregation 'medain'. Did you mean"),
        (["run", *FEDAVG, "--aggregate", "trimmed-mean:0.7"], "below 0.5, got 0.7"),
        (["run", *FEDAVG, "--aggregate", "clip"], "use for example 'clip:0.5'"),
        (["run", "--aggregate", "krum"], "'stc' does not support aggregate=krum:1"),
        (
            ["run", *FEDAVG, "--aggregate", "krum:2"],
            "aggregate=krum:2 needs at least 7 uploads in each round, but 5 of 10 clients take"
            " part. Use krum:1 or a larger participation",
        ),
        (
            ["run", "--method", "secure_topk", "--aggregate", "clip:1"],
            "'secure_topk' does not support aggregate=clip:1",
        ),
        (
            ["run", *FEDAVG, "--aggregate", "median", "--weighted"],
            "does not support aggregate=median together with weighted=true",
        ),
        (
            ["run", *FEDAVG, "--aggregate", "clip:1", *PRIVACY],
            "central differential privacy does not support aggregate=clip:1",
        ),
        (
            ["run", "--method", "fedavg:aggregate=krum:1", "--aggregate", "median"],
            "--aggregate median contradicts --method",
        ),
        (["run", "--config", "one.toml", "--aggregate", "median"], "cannot be combined with"),
        (["compare", "sgd", "signsgd", "--aggregate", "median"], "'signsgd' does not support"),
        (["compare", "sgd", "stc", "--aggregate", "mean,median"], "'stc' does not support"),
    ],
)
def test_an_unusable_aggregation_is_reported_before_training(fedtern, tmp_path, arguments, message):
    if PRIVACY[0] in arguments:
        pytest.importorskip("dp_accounting")
    result = fedtern(*arguments, *([] if "--config" in arguments else QUICK))
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_method_lists_its_parameter_aggregate_if_it_has_one(fedtern):
    assert "aggregate=none" in fedtern("methods", "fedavg").stdout
    assert "aggregate=none" not in fedtern("methods", "signsgd").stdout
    assert "aggregate=none" not in fedtern("methods", "secure_topk").stdout
    assert "aggregate" not in fedtern("methods").stdout
