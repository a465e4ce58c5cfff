"""Trackers, each with its real library where it is installed."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedtern.core.errors import MissingExtraError, StoreError
from fedtern.data.metric_spec import MetricSpec
from fedtern.runs import Evaluation
from fedtern.runs.callbacks import notify, started
from fedtern.runs.trackers import (
    TRACKERS,
    CsvTracker,
    JsonTracker,
    MlflowTracker,
    TensorBoardTracker,
    WandbTracker,
    make_tracker,
    tracked_values,
)
from runs.quick import QUICK

ROW = Evaluation(
    iteration=10,
    round=10,
    loss=1.5,
    accuracy=0.5,
    up_bytes=300,
    down_bytes=900,
    up_bytes_mean=100.0,
    down_bytes_mean=300.0,
    up_bytes_paper=90.0,
    down_bytes_paper=280.0,
    dense_bytes=26000,
    seconds={"train": 0.25},
)
ROWS = [replace(ROW, iteration=i, round=i, metrics={"accuracy": i / 100}) for i in (10, 20, 30)]


class Training:
    metric = MetricSpec()
    metrics = (metric,)
    config = QUICK.to_json()
    iteration = round = 30

    def __init__(self, path: Path | None = None) -> None:
        self.path = path


def track(tracker, path, rows, replayed=()):
    training = Training(path)
    with started([tracker], training, replayed):
        for row in rows:
            notify([tracker], "on_evaluation", training, row)


def test_values_that_are_not_finite_are_left_out():
    values = tracked_values(replace(ROW, loss=math.inf, metrics={"rmse": math.nan, "mae": 2.0}))
    assert "loss" not in values
    assert "rmse" not in values
    assert values["mae"] == 2.0
    assert (values["bytes/client_up"], values["bytes/server_up"]) == (100, 300)


def test_csv_has_one_line_per_evaluation_also_after_a_restart(tmp_path):
    for rows, replayed in ((ROWS[:2], ()), (ROWS[2:], ROWS[:2])):
        track(CsvTracker(), tmp_path, rows, replayed)
    with (tmp_path / "evaluations.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [float(row["iteration"]) for row in found] == [10, 20, 30]
    assert [float(row["accuracy"]) for row in found] == [0.1, 0.2, 0.3]
    assert float(found[0]["seconds/train"]) == 0.25


def test_a_new_csv_column_appears_in_all_lines(tmp_path):
    late = replace(ROWS[1], seconds={"train": 1.0, "save": 2.0})
    track(CsvTracker(tmp_path / "x.csv"), None, [ROWS[0], late])
    with (tmp_path / "x.csv").open() as file:
        assert [row["seconds/save"] for row in csv.DictReader(file)] == ["", "2.0"]


def test_json_has_the_experiment_and_all_evaluations(tmp_path):
    track(JsonTracker(tmp_path / "deep" / "x.json"), None, ROWS)
    found = json.loads((tmp_path / "deep" / "x.json").read_text())
    assert found["config"]["task"] == "logistic-digits"
    assert [row["iteration"] for row in found["evaluations"]] == [10, 20, 30]


@pytest.mark.parametrize("kind", [CsvTracker, JsonTracker])
def test_a_file_that_cannot_be_written_is_an_error(tmp_path, kind):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write"):
        track(kind(tmp_path / "file" / "x"), None, ROWS)
    with pytest.raises(ValueError, match="has no run directory"):
        track(kind(), None, ROWS)


def test_tensorboard_reads_the_scalars_and_a_restart_repeats_none(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for rows, replayed in ((ROWS[:2], ()), (ROWS[2:], ROWS[:2])):
        track(TensorBoardTracker(), tmp_path, rows, replayed)
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    points = found.Scalars("accuracy")
    assert [point.step for point in points] == [10, 20, 30]
    assert [point.value for point in points] == pytest.approx([0.1, 0.2, 0.3])
    assert {"bytes/client_up", "bytes/server_down", "seconds/train"} <= set(found.Tags()["scalars"])
    assert "config" in found.Tags()["tensors"]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_continues_the_run_of_the_same_experiment(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    for rows, replayed in ((ROWS[:2], ()), (ROWS[2:], ROWS[:2])):
        track(MlflowTracker(uri), tmp_path, rows, replayed)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("logistic-digits")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(point.step, point.value) for point in history] == [(10, 0.1), (20, 0.2), (30, 0.3)]
    assert run.data.params["method.name"] == "stc"
    assert run.data.metrics["bytes/client_up"] == 100
    assert run.info.status == "FINISHED"


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file in the log format of LevelDB, as W&B writes it."""
    at, parts = 7, b""  # after the header of the file
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:  # padding at the end of a block
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, or the last part
            yield parts
            parts = b""


@pytest.mark.slow  # starts a process
@pytest.mark.filterwarnings("ignore")
def test_wandb_records_an_offline_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    track(WandbTracker("project", mode="offline", directory=tmp_path), None, ROWS)
    (file,) = tmp_path.rglob("*.wandb")
    deadline = time.monotonic() + 30  # another process writes the file
    while (found := accuracies(file)) != {10: 0.1, 20: 0.2, 30: 0.3}:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def accuracies(file: Path) -> dict[int, float]:
    from wandb.proto import wandb_internal_pb2

    found = {}
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            values = {
                (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
                for item in record.history.item
            }
            found[record.history.step.num] = values["accuracy"]
    return found


def test_trackers_of_the_command_line(tmp_path):
    assert list(TRACKERS) == ["tensorboard", "mlflow", "wandb", "csv", "json"]
    tracker = make_tracker(f"csv:{tmp_path}/results", "abc")
    assert isinstance(tracker, CsvTracker)
    assert tracker.path == tmp_path / "results" / "abc.csv"
    assert make_tracker("json", "abc").path is None
    with pytest.raises(ValueError, match=r"Unknown tracker 'tensorbord'.*'tensorboard'"):
        make_tracker("tensorbord", "abc")


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_a_missing_library_is_an_error_with_its_extra(monkeypatch, name, module):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install .*\[{name}\]'"):
        make_tracker(name, "abc")
