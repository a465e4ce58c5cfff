"""The page about any model has the numbers of the runs beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtern.data.metric_spec import MetricSpec
from fedtern.runs import load_run

PAGE = Path(__file__).parents[2] / "docs" / "results" / "any-model.md"
RUNS = sorted(path.parent for path in PAGE.with_suffix("").glob("*/config.json"))


def test_every_task_of_the_page_has_compressed_and_uncompressed_runs():
    found = {(run.config["task"], run.method["name"]) for run in map(load_run, RUNS)}
    for task in ("resnet8-cifar10", "transformer-text", "lora-text", "mlp-regression"):
        assert {(task, "stc"), (task, "sgd")} <= found


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_a_row_of_the_page_has_the_last_evaluation_of_a_run(path):
    run = load_run(path)
    assert run.is_complete
    metric = MetricSpec.of_run(run.config)
    shown = [
        metric.format(metric.value(run.last)),
        *(f"{run.last[name] / 1e6:.3f}" for name in ("up_bytes_mean", "down_bytes_mean")),
    ]
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert any(all(f" {value} " in row for value in shown) for row in rows), shown
