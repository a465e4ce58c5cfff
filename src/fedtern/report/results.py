"""The results of runs as numbers, and the tables to download."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedtern.data.metric_spec import MetricSpec
from fedtern.report.groups import Group
from fedtern.runs.metrics import START
from fedtern.runs.recorded_run import RecordedRun, finite_number


@dataclass(frozen=True)
class Result:
    """The measurements of one run at its latest evaluation; None where nothing was measured.

    ``up_bytes`` and ``down_bytes`` are per client, ``total_*`` are at the server, as
    ``fedtern.runs.units`` defines them. ``wire_*`` are at the server and include the network's
    overhead, if the engine measured it. ``seconds`` do not include the start of the process.
    """

    run: str
    task: str
    method: str
    seed: Any
    iterations: float | None
    planned_iterations: float | None
    final_accuracy: float | None
    best_accuracy: float | None
    final_loss: float | None
    up_bytes: float | None
    up_bytes_paper: float | None
    up_ratio: float | None  # dense_bytes / up_bytes
    down_bytes: float | None
    down_bytes_paper: float | None
    down_ratio: float | None  # dense_bytes / down_bytes
    dense_bytes: float | None  # uncompressed updates at every iteration, in one direction
    total_up_bytes: float | None
    total_down_bytes: float | None
    wire_up_bytes: float | None
    wire_down_bytes: float | None
    seconds: float | None
    metric: str  # the primary metric, which is accuracy for classification
    final_metric: float | None
    best_metric: float | None
    epsilon: float | None  # privacy loss, with differential privacy
    delta: float | None
    participations: float | None  # of the client that took part most often


def result(run: RecordedRun, label: str) -> Result:
    """Return the result of a run, under the label of its group."""
    last = run.last
    accuracy = MetricSpec()
    metric = MetricSpec.of_run(run.config)
    privacy = last.get("privacy")
    spent = privacy if isinstance(privacy, Mapping) else {}
    up = finite_number(last, "up_bytes_mean")
    down = finite_number(last, "down_bytes_mean")
    dense = finite_number(last, "dense_bytes")
    return Result(
        run=run.digest,
        task=str(run.config.get("task", "")),
        method=label,
        seed=run.config.get("seed"),
        iterations=finite_number(last, "iteration"),
        planned_iterations=finite_number(run.config, "iterations"),
        final_accuracy=finite_number(last, "accuracy"),
        best_accuracy=_best(run, accuracy),
        final_loss=finite_number(last, "loss"),
        up_bytes=up,
        up_bytes_paper=finite_number(last, "up_bytes_paper"),
        up_ratio=_ratio(dense, up),
        down_bytes=down,
        down_bytes_paper=finite_number(last, "down_bytes_paper"),
        down_ratio=_ratio(dense, down),
        dense_bytes=dense,
        total_up_bytes=finite_number(last, "up_bytes"),
        total_down_bytes=finite_number(last, "down_bytes"),
        wire_up_bytes=finite_number(last, "wire_up_bytes"),
        wire_down_bytes=finite_number(last, "wire_down_bytes"),
        seconds=sum(t for phase, t in phases(last).items() if phase != START) if last else None,
        metric=metric.name,
        final_metric=metric.value(last),
        best_metric=_best(run, metric),
        epsilon=finite_number(spent, "epsilon"),
        delta=finite_number(spent, "delta"),
        participations=finite_number(spent, "participations"),
    )


def _best(run: RecordedRun, metric: MetricSpec) -> float | None:
    values = [metric.value(evaluation) for evaluation in run.evaluations]
    return metric.best_of(value for value in values if value is not None)


def results(groups: Sequence[Group]) -> list[Result]:
    """Return the result of each run, group by group."""
    return [result(run, group.label) for group in groups for run in group.runs]


def phases(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds spent in each phase up to an evaluation."""
    seconds = evaluation.get("seconds")
    if not isinstance(seconds, Mapping):
        return {}
    measured = {str(phase): finite_number(seconds, phase) for phase in seconds}
    return {phase: value for phase, value in measured.items() if value is not None}


def results_csv(groups: Sequence[Group]) -> str:
    """Return the table of results as CSV, with all digits."""
    names = [field.name for field in fields(Result)]
    return _csv([names, *([getattr(row, name) for name in names] for row in results(groups))])


def evaluations_csv(groups: Sequence[Group]) -> str:
    """Return every evaluation of every run as CSV; nested values have dotted names."""
    rows = [
        {
            "run": run.digest,
            "method": group.label,
            "seed": run.config.get("seed"),
            **dict(flatten(evaluation)),
        }
        for group in groups
        for run in group.runs
        for evaluation in run.evaluations
    ]
    names = list(dict.fromkeys(["run", "method", "seed", *(name for row in rows for name in row)]))
    return _csv([names, *([row.get(name) for name in names] for row in rows)])


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested values under dotted names.

    >>> dict(flatten({"a": 1, "b": {"c": 2}}))
    {'a': 1, 'b.c': 2}
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _ratio(dense: float | None, sent: float | None) -> float | None:
    return dense / sent if dense and sent else None
