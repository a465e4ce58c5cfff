"""Runs that were published with the documentation are read by every later version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedtern.runs import Experiment, load_run, reopen_run

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RUNS = sorted(path.parent for path in RESULTS.rglob("config.json"))
FINISHED = RESULTS / "table4-lstm-fashion" / "871476600353"


def test_there_are_published_runs():
    assert FINISHED in RUNS


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_the_digest_of_a_published_run_has_not_changed(path):
    run = load_run(path)
    assert Experiment.from_json(run.config).digest == run.config["digest"]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_a_published_run_has_the_same_evaluations_for_every_reader(path):
    evaluations = reopen_run(path).evaluations()
    assert evaluations
    assert [found.to_json() for found in evaluations] == list(load_run(path).evaluations)


def test_reading_a_finished_run_does_not_import_torch():
    code = f"""
import sys
from pathlib import Path
from fedtern.runs import Experiment, load_run, reopen_run

path = Path({str(FINISHED)!r})
recorded = load_run(path)
run = reopen_run(path)
assert recorded.is_complete and run.is_finished()
assert run.final_evaluation().iteration == run.experiment.last_iteration
assert run.experiment.uses_task_rates, run.experiment.title
assert Experiment.of("lstm-fashion", "sgd").momentum == 0.9
assert "torch" not in sys.modules and "fedtern.training" not in sys.modules
assert not any(name.startswith("fedtern.transports") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
