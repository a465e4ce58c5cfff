"""What a run came to: the numbers of one row of the table, and the tables to download."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedtern.report.groups import Group
from fedtern.runs.recorded_run import RecordedRun, finite_number


@dataclass(frozen=True)
class Result:
    """One run in numbers; None where nothing has been measured.

    Bytes are the mean over each round's clients, summed, except ``total_*`` and ``wire_*``: all
    clients'. On the wire is also what an engine with a network of its own sends around messages.
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
    up_ratio: float | None  # how many times less than uncompressed at every iteration
    down_bytes: float | None
    down_bytes_paper: float | None
    down_ratio: float | None
    dense_bytes: float | None  # one way
    total_up_bytes: float | None
    total_down_bytes: float | None
    wire_up_bytes: float | None
    wire_down_bytes: float | None
    seconds: float | None


def result(run: RecordedRun, label: str) -> Result:
    """The latest evaluation of a run, with the best accuracy of all of them."""
    last = run.last
    accuracies = [finite_number(evaluation, "accuracy") for evaluation in run.evaluations]
    up, down, dense = (
        finite_number(last, key) for key in ("up_bytes_mean", "down_bytes_mean", "dense_bytes")
    )
    return Result(
        run=run.digest,
        task=str(run.config.get("task", "")),
        method=label,
        seed=run.config.get("seed"),
        iterations=finite_number(last, "iteration"),
        planned_iterations=finite_number(run.config, "iterations"),
        final_accuracy=finite_number(last, "accuracy"),
        best_accuracy=max((a for a in accuracies if a is not None), default=None),
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
        seconds=sum(phases(last).values()) if last else None,
    )


def results(groups: Sequence[Group]) -> list[Result]:
    """One for each run, seeds of one configuration next to each other."""
    return [result(run, group.label) for group in groups for run in group.runs]


def phases(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Seconds spent so far, by phase."""
    seconds = evaluation.get("seconds")
    if not isinstance(seconds, Mapping):
        return {}
    found = {str(phase): finite_number(seconds, phase) for phase in seconds}
    return {phase: value for phase, value in found.items() if value is not None}


def results_csv(groups: Sequence[Group]) -> str:
    """The table of results, every number in full."""
    names = [field.name for field in fields(Result)]
    return _csv([names, *([getattr(row, name) for name in names] for row in results(groups))])


def evaluations_csv(groups: Sequence[Group]) -> str:
    """Every evaluation of every run as it was written, nested values under dotted names."""
    rows = [
        {"run": run.digest, "method": group.label, "seed": run.config.get("seed"), **flat}
        for group in groups
        for run in group.runs
        for flat in (dict(flatten(evaluation)) for evaluation in run.evaluations)
    ]
    names = list(dict.fromkeys(["run", "method", "seed", *(name for row in rows for name in row)]))
    return _csv([names, *([row.get(name) for name in names] for row in rows)])


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values under dotted names.

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
