"""Runs that are trained in their directory: stopped, killed, resumed and finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from torch import nn

from fedtern import Snapshot, StoreError
from fedtern.core.errors import RunError
from fedtern.data import Dataset
from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import TASK_DEFAULTS
from fedtern.runs import Experiment, open_run
from fedtern.training import TASKS, Task, register_task
from fedtern.transports.local.launch import check_task, train_run
from runs.quick import QUICK


def test_a_run_writes_its_configuration_split_and_metrics(tmp_path):
    run = open_run(QUICK, tmp_path, command="fedtern run")
    assert not run.is_finished()
    rounds = list(train_run(run))
    assert [r.iteration for r in rounds] == [10, 20, 30]
    assert run.is_finished()
    assert run.path == tmp_path / QUICK.digest
    config = json.loads((run.path / "config.json").read_text())
    assert (config["digest"], config["parameters"]) == (QUICK.digest, 650)
    assert Experiment.from_json(config) == QUICK
    split = json.loads((run.path / "split.json").read_text())
    assert np.array(split["counts"]).shape == (10, 10)
    assert open_run(QUICK, tmp_path).evaluations() == rounds
    assert list(train_run(open_run(QUICK, tmp_path))) == []


def test_an_impossible_split_creates_no_directory(tmp_path):
    crowded = Experiment.of("logistic-digits", "stc", Environment(clients=5000))
    with pytest.raises(ValueError, match="use fewer clients"):
        list(train_run(open_run(crowded, tmp_path / "runs")))
    assert not (tmp_path / "runs").exists()


def test_a_run_is_finished_only_after_its_model_is_saved(tmp_path):
    whole = open_run(QUICK, tmp_path / "a")
    list(train_run(whole))
    run = open_run(QUICK, tmp_path / "b")
    for found in train_run(run):
        if found.iteration >= QUICK.iterations:
            break  # like a kill between the last evaluation and the last checkpoint
    assert len(run.evaluations()) == 3
    assert not run.is_finished()
    list(train_run(run))
    assert run.is_finished()
    assert _final_state(run.path) == _final_state(whole.path)
    assert _without_times(run.metrics.path) == _without_times(whole.metrics.path)


def test_a_run_is_locked_while_it_trains(tmp_path):
    run = open_run(QUICK, tmp_path)
    going = train_run(run)
    next(going)
    with pytest.raises(StoreError, match="is locked by another process"):
        next(train_run(open_run(QUICK, tmp_path)))
    going.close()
    list(train_run(run))
    assert run.is_finished()


def test_a_run_that_another_process_has_just_finished_is_not_trained_again(tmp_path, monkeypatch):
    late = open_run(QUICK, tmp_path)
    split_dataset = Environment.split_dataset

    def train_in_the_meantime(*arguments):
        monkeypatch.undo()
        list(train_run(open_run(QUICK, tmp_path)))
        return split_dataset(*arguments)

    monkeypatch.setattr(Environment, "split_dataset", train_in_the_meantime)
    assert list(train_run(late)) == []
    assert late.is_finished()
    assert [r.iteration for r in late.evaluations()] == [10, 20, 30]


@pytest.mark.parametrize("length", [0, -9])
def test_a_damaged_checkpoint_is_an_error_that_names_the_file_and_the_remedy(tmp_path, length):
    run = open_run(QUICK, tmp_path)
    list(train_run(run, stopped=iter([False, True]).__next__))
    run.checkpoint_path.write_bytes(run.checkpoint_path.read_bytes()[:length])
    with pytest.raises(
        StoreError, match=r"checkpoint\.safetensors is damaged .*; remove it to start"
    ):
        list(train_run(run))


def test_a_run_with_a_damaged_line_in_its_metrics_does_not_resume(tmp_path):
    run = open_run(QUICK, tmp_path)
    list(train_run(run, stopped=iter([False] * 12 + [True]).__next__))
    lines = run.metrics.path.read_text()
    run.metrics.path.write_text("damage\n" + lines)
    with pytest.raises(RunError, match=r"metrics\.jsonl: line 1 is damaged"):
        list(train_run(run))
    run.metrics.path.write_text(lines)
    assert [found.iteration for found in train_run(run)] == [20, 30]


def test_a_registered_task_can_be_run(tmp_path):
    rows = np.eye(4, dtype=np.float32)
    data = Dataset("eye", rows, np.arange(4) % 2, rows, np.arange(4) % 2, num_classes=2)
    task = Task("mine", data, lambda: nn.Linear(4, 2), learning_rate=0.1, iterations=3)
    with patch.dict(TASKS), patch.dict(TASK_DEFAULTS):
        register_task(task)
        here = Environment(clients=2, participation=1, classes_per_client=2, batch_size=1)
        run = open_run(Experiment.of("mine", "sgd", here), tmp_path)
        assert [found.iteration for found in train_run(run, workers=0)] == [1, 2, 3]
    assert run.final_evaluation().iteration == 3  # also where the task is not registered


def test_a_finished_run_keeps_its_model_and_a_digest_of_its_state(tmp_path):
    run = open_run(QUICK, tmp_path)
    list(train_run(run, stopped=iter([False, True]).__next__))
    assert run.checkpoint_path.exists()
    assert not run.model_path.exists()
    list(train_run(run))
    assert not run.checkpoint_path.exists()
    kept = Snapshot.from_bytes(run.model_path.read_bytes()).arrays
    assert {n: w.shape for n, w in kept.items()} == {"1.weight": (10, 64), "1.bias": (10,)}
    other = replace(QUICK, seed=QUICK.seed + 1)
    list(train_run(open_run(other, tmp_path)))
    assert _final_state(run.path) != _final_state(tmp_path / other.digest)


def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path):
    whole = open_run(QUICK, tmp_path / "a")
    list(train_run(whole))
    parts = open_run(QUICK, tmp_path / "b")
    rounds = []

    def stopped() -> bool:
        rounds.append(0)
        return len(rounds) % 7 == 0

    for _ in range(6):
        list(train_run(parts, stopped=stopped))
    assert parts.is_finished()
    assert _without_times(parts.metrics.path) == _without_times(whole.metrics.path)
    assert _final_state(parts.path) == _final_state(whole.path)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path):
    """SIGKILL at three random points of a run from the command line, then --resume."""
    options = [
        "run", "--method", "stc:p_up=0.02,p_down=0.02", "--classes-per-client", "2",
        "--iterations", "300", "--evaluate-every", "7", "--momentum", "0.5", "--json",
    ]  # fmt: skip
    environment = {**os.environ, "FEDTERN_CHECKPOINT_SECONDS": "0.1"}

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedtern", *options, "--resume", "--out", str(out)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    assert start(tmp_path / "whole").wait() == 0
    (whole,) = (tmp_path / "whole").iterdir()
    rng = np.random.default_rng(os.getpid())

    def kill_three_times(out: Path) -> bool:
        """Return False if the run ends before that, as it may where the test has to wait."""
        for _ in range(3):
            target = _lines(out) + int(rng.integers(1, 12))
            process = start(out)
            while process.poll() is None and _lines(out) < target:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            if (code := process.wait()) == 0:
                return False
            assert code == -signal.SIGKILL
        return True

    attempts = (tmp_path / f"killed-{attempt}" for attempt in range(5))
    out = next(filter(kill_three_times, attempts), None)
    assert out is not None, "five runs ended before they could be killed"
    assert start(out).wait() == 0
    (killed,) = out.iterdir()
    assert _without_times(killed / "metrics.jsonl") == _without_times(whole / "metrics.jsonl")
    assert _final_state(killed) == _final_state(whole)


def _lines(out: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in out.glob("*/metrics.jsonl"))


def _without_times(metrics: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def _final_state(run: Path) -> tuple[str, bytes]:
    """Return the digest of the final state, and the model."""
    state = json.loads((run / "config.json").read_text())["state"]
    return state, (run / "model.safetensors").read_bytes()


def test_a_run_of_another_version_of_a_task_is_an_error_that_names_the_part(tmp_path, monkeypatch):
    monkeypatch.setitem(TASK_DEFAULTS, "versioned", None)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4)).astype(np.float32)
    data = Dataset("x", x[20:], np.arange(40) % 2, x[:20], np.arange(20) % 2, num_classes=2)
    small = Environment(clients=2, participation=1, classes_per_client=2)

    def register(model):
        monkeypatch.setitem(TASKS, "versioned", Task("versioned", data, model, 0.1, 4))
        TASK_DEFAULTS["versioned"] = TASKS["versioned"].defaults

    register(lambda: nn.Linear(4, 2))
    run = open_run(Experiment.of("versioned", "sgd", small), tmp_path)
    list(train_run(run))
    check_task(run)
    register(lambda: nn.Sequential(nn.Linear(4, 2)))
    with pytest.raises(StoreError, match="holds a run of task 'versioned' that differs in model;"):
        list(train_run(run))
    with pytest.raises(StoreError, match="differs in model; choose another directory"):
        check_task(run)
