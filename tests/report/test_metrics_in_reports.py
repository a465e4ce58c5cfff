"""Reports of runs whose primary metric is not accuracy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedtern.report.groups import group_runs
from fedtern.report.page import render
from fedtern.report.results import result
from fedtern.report.summary import summary
from fedtern.report.tables import result_rows
from fedtern.runs import RecordedRun, load_run
from report.fake_runs import METHODS, config, evaluations, write_run

STC, SGD = (next(m for m, *_ in METHODS if m["name"] == name) for name in ("stc", "sgd"))


def perplexity_run(path: Path, method: dict[str, Any], factor: float) -> RecordedRun:
    """Write a run whose perplexity falls and then rises a little."""
    rows = evaluations(method, 0, 2000)
    for i, row in enumerate(rows):
        row["accuracy"] = None
        row["metrics"] = {"perplexity": factor * (10 + abs(i - len(rows) // 2))}
    rows[0]["metrics"] = {"perplexity": None}
    settings = {**config(method), "metric": {"name": "perplexity", "best": "lower"}}
    return load_run(write_run(path, settings, rows))


@pytest.fixture
def runs(tmp_path) -> list[RecordedRun]:
    return [
        perplexity_run(tmp_path / "stc", STC, 2.0),
        perplexity_run(tmp_path / "sgd", SGD, 1.0),
    ]


def test_the_best_value_follows_the_direction(runs):
    found = result(runs[0], "STC")
    assert found.metric == "perplexity"
    assert found.best_metric == 20
    assert found.final_metric is not None
    assert found.final_metric > 20
    assert found.final_accuracy is None


def test_the_summary_names_the_metric_and_starts_with_the_best_method(runs):
    text = summary(group_runs(runs))
    assert "reached perplexity 19" in text
    assert text.index("Uncompressed") < text.index("STC")


def test_the_table_has_numbers_instead_of_percentages(runs):
    cells = result_rows(group_runs(runs))[0].cells
    assert cells[:2] == ("38.0", "20.0")


def test_axes_and_headings_name_the_metric(runs):
    pytest.importorskip("plotly")
    pytest.importorskip("jinja2")
    page = render(runs)
    for text in ("Perplexity against iterations", ">Perplexity</th>", 'id="perplexity-up"'):
        assert text in page
    assert "Accuracy against" not in page


def test_runs_with_different_metrics_have_their_own_plots(runs, tmp_path):
    pytest.importorskip("plotly")
    pytest.importorskip("jinja2")
    other = load_run(write_run(tmp_path / "other", config(STC, seed=1), evaluations(STC, 1)))
    page = render([*runs, other])
    for text in ("Perplexity against iterations", "Accuracy against iterations", ">Metric</th>"):
        assert text in page
    assert not math.isnan(result(other, "STC").final_metric)


def test_a_metric_called_time_keeps_its_plots(tmp_path):
    rows = evaluations(STC, 0, 2000)
    for row in rows:
        row["accuracy"] = None
        row["metrics"] = {"time": 3.0}
    settings = {**config(STC), "metric": {"name": "time", "best": "lower"}}
    page = render([load_run(write_run(tmp_path / "stc", settings, rows))])
    assert "Time (lower is better)" in page
    assert "Time against iterations" in page
