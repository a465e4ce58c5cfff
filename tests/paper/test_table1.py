"""Table I: its runs and its verdicts."""

from __future__ import annotations

import csv
import json
import math

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from typer.testing import CliRunner

from fedtern.cli import app
from fedtern.core.methods import METHODS
from fedtern.runs import Evaluation
from fedtern_paper import ARTEFACTS, Settings, table1
from fedtern_paper.published import COMPRESSION_VERDICTS
from fedtern_paper.settings import IID, NON_IID
from fedtern_paper.table1 import Row, Verdict, published_verdict

BOTH = (IID, NON_IID)


def ended(accuracy, up=1.0, down=1.0, iterations=100):
    """Return the final evaluation of a run with 100 parameters and these compression factors."""
    dense = 400 * iterations
    return Evaluation(
        iterations, iterations, 0.5, accuracy, 0, 0, dense / up if up else 0,
        dense / down if down else 0, 0.0, 0.0, dense, {},
    )  # fmt: skip


DENSE = {(place, seed): ended(0.9) for place in BOTH for seed in range(2)}


def row(iid, non_iid, dense=DENSE, **traffic):
    """Return the row of a method with these final accuracies, one per seed."""
    runs = {(IID, seed): ended(a, **traffic) for seed, a in enumerate(iid)}
    runs |= {(NON_IID, seed): ended(a, **traffic) for seed, a in enumerate(non_iid)}
    return Row("m", "M", runs, dense)


@pytest.mark.parametrize(
    ("traffic", "down", "strong"),
    [
        ({"up": 33, "down": 2.1}, True, True),
        ({"up": 32, "down": 2.0}, False, False),
        ({"up": 1, "down": math.inf}, True, False),
        ({"up": 400, "down": 1}, False, True),
    ],
)
def test_compression_is_judged_by_thresholds(traffic, down, strong):
    assert row([0.9], [0.9], **traffic).verdict()[:2] == (down, strong)


def test_a_robust_method_is_within_five_points_of_uncompressed_training():
    assert row([0.2], [0.85]).verdict().robust
    assert not row([0.99], [0.84]).verdict().robust
    assert row([0.9, 0.9], [0.82, 0.9]).verdict().robust  # 4 points, on average
    assert math.isclose(row([0.9, 0.9], [0.8, 0.9]).drop(), 0.05)


def test_longer_runs_are_compared_with_extrapolated_uncompressed_traffic():
    runs = {(place, 0): ended(0.9, 400, 400, iterations=400) for place in BOTH}
    found = Row("m", "M", runs, DENSE)
    assert (found.up(), found.down()) == (400, 400)


def test_runs_are_compared_by_place_and_seed_and_missing_runs_have_no_verdict():
    dear = {**DENSE, (NON_IID, 0): ended(0.9, down=0.5)}  # downloads are twice as large
    assert row([0.9], [0.9], dear).down() == 1.5
    assert row([0.9], []).verdict() is None
    assert row([], [0.9]).drop() is None
    assert row([0.9], [0.9], {}).verdict() is None


def test_verdicts_name_the_columns_in_which_they_differ():
    assert Verdict(True, False, True).differing(published_verdict("fedavg")) == ["rate", "robust"]
    assert published_verdict("stc").words() == ("yes", "strong", "yes")
    assert set(COMPRESSION_VERDICTS) < set(METHODS)


def test_the_grid_has_every_method_in_both_environments_and_the_baseline():
    cells = table1.cells(Settings(seeds=2))
    left_out = {"topk", "stc_plus", "grid"}
    assert len(cells) == 4 * (len(METHODS) - len(left_out) + 1)  # and STC with delay
    assert {cell.method["name"] for cell in cells} == set(METHODS) - left_out
    assert {cell.environment.classes_per_client for cell in cells} == {1, 10}
    assert {cell.iterations for cell in cells} == {5000}
    some = Settings(methods=("stc", "fedavg:local_steps=25", "sgd"), quick=True)
    assert table1.methods(some) == ["sgd", "stc", table1.DELAYED, "fedavg:local_steps=25"]
    assert {cell.iterations for cell in table1.cells(some)} == {500}


def test_the_command_runs_the_grid_and_writes_all_files(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    command = "reproduce table1 --task logistic-digits --iterations 100 --quick --seeds 2"
    line = [*command.split(), "--method", "signsgd", "--workers", "1"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, result.output
    assert "quick: 10 iterations where the task has 1,000" in result.stdout
    assert "8/8" in result.stderr
    stem = tmp_path / "results" / "table1-logistic-digits"
    with stem.with_suffix(".csv").open() as file:
        dense, signs = csv.DictReader(file)
    assert (dense["method"], signs["method"], signs["iterations"]) == ("sgd", "signsgd", "10")
    assert dense["compression_down"] == "1.0"
    assert 20 < float(signs["compression_up"]) < 32
    assert (signs["rate"], signs["paper_rate"], signs["seeds_iid"]) == ("weak", "weak", "2")
    assert float(signs["accuracy_iid_std"]) > 0
    page = stem.with_suffix(".md").read_text()
    for text in (
        "# Table I, measured (quick)",
        "quick: 10",
        "| signSGD",
        " ± ",
        "Robust: on non-iid data",
    ):
        assert text in page
    assert "](table1-logistic-digits.svg)" in page
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    picture = stem.with_suffix(".svg").read_bytes()
    again = CliRunner().invoke(app, [*line, "--json"])
    assert (again.stderr, picture) == ("", stem.with_suffix(".svg").read_bytes())
    assert [r["method"] for r in json.loads(again.stdout)["rows"]] == ["sgd", "signsgd"]


def test_failed_runs_are_reported_and_missing_from_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "reproduce table1 --task logistic-digits --iterations 5 --method signsgd --workers 1"
    settings = Settings("logistic-digits", iterations=5, methods=("signsgd",))
    blocked = table1.cells(settings)[-1]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / blocked.digest).write_text("in the way")
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(
        "fedtern: signsgd delta=1/5000 classes_per_client=1: cannot create"
    )
    page = (tmp_path / "results" / "table1-logistic-digits.md").read_text()
    assert "Missing, because the runs failed: signsgd delta=1/5000 classes_per_client=1." in page
    assert "| – | – | – |" in page


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tabel1"], "Unknown artefact 'tabel1'. Did you mean 'table1' or 'table4'?"),
        (["table1", "--task", "logistic"], "Unknown task 'logistic'"),
        (["table1", "--method", "std"], "Unknown method 'std'. Did you mean 'stc'"),
        (["table1", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["table1", "--iterations", "0"], "iterations must be a whole number of at least 1, got 0"),
        (["table1", "--workers", "0"], "workers must be at least 1, got 0"),
    ],
)
def test_invalid_options_are_reported_in_one_line(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_artefacts_are_listed_with_the_number_of_their_runs():
    result = CliRunner().invoke(app, ["reproduce", "--list", "--json"])
    rows = {row["artefact"]: row["runs"] for row in json.loads(result.stdout)["artefacts"]}
    assert rows["table1"] == 40
    shown = CliRunner().invoke(app, ["reproduce", "--list"]).stdout
    assert all(name in shown and each.about in shown for name, each in ARTEFACTS.items())
