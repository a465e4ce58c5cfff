"""One policy for damaged lines of metrics.jsonl, wherever the file is read."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import pytest

from fedtern.core.errors import RunError, StoreError
from fedtern.runs import Evaluation
from fedtern.runs.metrics import MetricsFile

ONE = Evaluation(10, 10, 0.5, 0.9, 10, 20, 1.0, 2.0, 0.5, 1.0, 100, {"train": 0.25})


@pytest.fixture
def metrics(tmp_path):
    return MetricsFile(tmp_path / "metrics.jsonl")


def test_a_missing_file_has_no_lines(metrics):
    assert metrics.read(dict) == []


def test_appended_rows_are_read_in_order(metrics):
    for number in range(3):
        metrics.append({"round": number})
    assert metrics.read(dict) == [{"round": 0}, {"round": 1}, {"round": 2}]


def test_an_evaluation_survives_the_file(metrics):
    metrics.append(ONE.to_json())
    assert metrics.evaluations() == [ONE]
    names = {field.name for field in fields(Evaluation)}
    assert set(json.loads(metrics.path.read_text())) == names - {"metrics", "privacy"}


def test_a_privacy_loss_survives_the_file(metrics):
    private = replace(ONE, privacy={"epsilon": 1.5, "delta": 1e-5, "participations": 60.0})
    metrics.append(private.to_json())
    assert metrics.evaluations() == [private]


def test_other_metrics_than_accuracy_survive_the_file(metrics):
    other = replace(ONE, accuracy=math.nan, metrics={"perplexity": 12.5, "bits": math.inf})
    assert other.primary == ("perplexity", 12.5)
    metrics.append(other.to_json())
    (found,) = metrics.evaluations()
    assert math.isnan(found.accuracy)
    assert found.primary == ("perplexity", 12.5)
    assert math.isnan(found.metrics["bits"])


def test_an_infinite_loss_is_written_as_null_and_read_as_infinite(metrics):
    metrics.append(Evaluation(**{**ONE.to_json(), "loss": math.nan}).to_json())
    assert json.loads(metrics.path.read_text())["loss"] is None
    assert metrics.evaluations()[0].loss == math.inf


@pytest.mark.parametrize("torn", [b'{"round": 3', b"\xff", b"\x00\x00", b"[", b"12"])
def test_an_unfinished_last_line_is_dropped_silently(metrics, torn):
    metrics.path.write_bytes(b'{"round": 1}\n' + torn)
    assert metrics.read(dict) == [{"round": 1}]


def test_a_complete_last_line_without_a_newline_is_read(metrics):
    metrics.path.write_bytes(b'{"round": 1}\n{"round": 2}')
    assert metrics.read(dict) == [{"round": 1}, {"round": 2}]


def test_empty_lines_are_ignored(metrics):
    metrics.path.write_bytes(b'\n{"round": 1}\n\n{"round": 2}\n\n')
    assert metrics.read(dict) == [{"round": 1}, {"round": 2}]


@pytest.mark.parametrize("damage", [b"\xff", b'{"round": 3', b"[]", b"null", b"\x00\x00"])
def test_a_damaged_line_is_an_error_that_names_the_file_and_the_line(metrics, damage):
    metrics.path.write_bytes(b'{"round": 1}\n' + damage + b"\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl: line 2 is damaged"):
        metrics.read(dict)


@pytest.mark.parametrize(
    ("change", "message"),
    [(lambda row: row.pop("loss"), "missing: loss"), (lambda row: row.update(x=1), "unknown: x")],
)
def test_a_line_with_other_fields_is_damaged_where_evaluations_are_read(metrics, change, message):
    row = ONE.to_json()
    change(row)
    metrics.append(row)
    with pytest.raises(RunError, match=rf"line 1 is damaged, or .* another version .*{message}"):
        metrics.evaluations()
    assert metrics.read(dict) == [row]


def test_a_resuming_server_drops_damaged_lines_and_hears_of_each(metrics):
    metrics.path.write_bytes(b'{"round": 1}\n\xff\n{"round": 2}\n[]\n{"rou')
    errors = []
    assert metrics.read(dict, errors.append) == [{"round": 1}, {"round": 2}]
    assert [str(error).partition(" is ")[0] for error in errors] == [
        f"{metrics.path}: line 2",
        f"{metrics.path}: line 4",
    ]


def test_replacing_the_rows_repairs_the_file(metrics):
    metrics.path.write_bytes(b'{"round": 1}\n{"round": 2}\n{"rou')
    metrics.replace(metrics.read(dict))
    metrics.append({"round": 3})
    assert metrics.path.read_text() == '{"round": 1}\n{"round": 2}\n{"round": 3}\n'


def test_a_file_that_cannot_be_written_is_named(metrics):
    metrics.path.mkdir()
    for write in (lambda: metrics.append({}), lambda: metrics.replace([])):
        with pytest.raises(StoreError, match=r"cannot write .*metrics\.jsonl: "):
            write()
