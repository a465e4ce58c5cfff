"""Records: the part of finished runs that estimates need."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from statistics import fmean
from typing import Any, NamedTuple

from fedtern.data.environment import Environment
from fedtern.data.metric_spec import MetricSpec
from fedtern.runs.recorded_run import EXPERIMENT_KEYS, RecordedRun, finite_number


class Point(NamedTuple):
    """An evaluation: accuracy, and bytes per participating client since the start."""

    iteration: int
    accuracy: float
    up: float  # bytes: the mean over a round's clients, summed over rounds
    down: float


@dataclass(frozen=True)
class Record:
    """One configuration: its evaluations, averaged over seeds."""

    task: str
    parameters: int
    method: Mapping[str, Any]
    momentum: float
    learning_rate: float
    weight_decay: float
    environment: Environment
    iterations: int
    own_iterations: int  # of the task: a run may have fewer
    seeds: int
    points: tuple[Point, ...]

    @property
    def best(self) -> float:
        """Highest accuracy of any evaluation."""
        return max(point.accuracy for point in self.points)

    def reaching(self, accuracy: float) -> Point | None:
        """Return the first evaluation with at least this accuracy, or None."""
        return next((point for point in self.points if point.accuracy >= accuracy), None)


def collect_records(
    runs: Iterable[RecordedRun], tasks: Mapping[str, int] | None = None
) -> list[Record]:
    """Turn finished runs into records; runs that differ only in their seed become one record.

    Args:
        runs: Runs; those that are not complete, and those of tasks without accuracy, are ignored.
        tasks: Number of iterations of each task. For other tasks it is the run's own.

    Returns:
        One record per configuration.

    """
    by_seed: dict[str, dict[int, RecordedRun]] = {}
    for run in runs:
        if run.config.get("privacy") is not None:
            continue  # noise costs accuracy, which says nothing about the method
        if run.is_complete and MetricSpec.of_run(run.config) == MetricSpec():
            # Curves are averaged point by point, so they need the same evaluation interval.
            # Another engine may choose other cohorts.
            keys = (*EXPERIMENT_KEYS, "evaluate_every", "engine")
            configuration = {key: run.config.get(key) for key in keys}
            seeds = by_seed.setdefault(json.dumps(configuration, sort_keys=True), {})
            seeds[run.config.get("seed", 0)] = run
    return [_record(list(by_seed[name].values()), tasks or {}) for name in sorted(by_seed)]


def _record(runs: list[RecordedRun], tasks: Mapping[str, int]) -> Record:
    config = runs[0].config
    curves = [[_point(evaluation) for evaluation in run.evaluations] for run in runs]
    last = runs[0].evaluations[-1]
    task = str(config["task"])
    iterations = int(config["iterations"])
    return Record(
        task,
        # Carried tensors are part of the dense bytes, but not of the parameters.
        int(config.get("parameters") or round(last["dense_bytes"] / 4 / last["iteration"])),
        dict(config["method"]),
        float(config["momentum"]),
        float(config["learning_rate"]),
        float(config["weight_decay"]),
        Environment(**config["environment"]),
        iterations,
        tasks.get(task, iterations),
        len(runs),
        tuple(_mean(points) for points in zip(*curves, strict=False)),
    )


def _point(evaluation: Mapping[str, Any]) -> Point:
    return Point(
        int(evaluation["iteration"]),
        finite_number(evaluation, "accuracy") or 0.0,
        float(evaluation["up_bytes_mean"]),
        float(evaluation["down_bytes_mean"]),
    )


def _mean(points: Sequence[Point]) -> Point:
    accuracy, up, down = (fmean(values) for values in list(zip(*points, strict=True))[1:])
    return Point(points[0].iteration, round(accuracy, 4), round(up), round(down))


def merge_records(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Merge records; of two with the same configuration, keep the one with more seeds.

    With equally many seeds, the newer record is kept.
    """
    kept: dict[str, Record] = {}
    for record in (*old, *new):
        key = _configuration_key(record)
        if key not in kept or record.seeds >= kept[key].seeds:
            kept[key] = record
    return list(kept.values())


def _configuration_key(record: Record) -> str:
    configuration = (
        record.task,
        record.method,
        asdict(record.environment),
        record.momentum,
        record.learning_rate,
        record.weight_decay,
        record.iterations,
    )
    return json.dumps(configuration, sort_keys=True)


def dump_records(records: Iterable[Record]) -> bytes:
    """Encode records as compressed JSON; their order does not matter."""
    ordered = sorted(records, key=_configuration_key)
    rows = [{**asdict(r), "points": [list(point) for point in r.points]} for r in ordered]
    text = json.dumps(rows, sort_keys=True, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def load_records(data: bytes | None = None) -> list[Record]:
    """Decode records; without data, load the records that come with the package."""
    if data is None:
        data = files("fedtern.advice").joinpath("records.json.gz").read_bytes()
    return [
        Record(
            **{
                **row,
                "environment": Environment(**row["environment"]),
                "points": tuple(Point(*point) for point in row["points"]),
            }
        )
        for row in json.loads(gzip.decompress(data))
    ]
