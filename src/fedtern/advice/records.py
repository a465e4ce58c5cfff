"""Runs that were made, cut down to what an estimate takes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from statistics import fmean
from typing import Any, NamedTuple

from fedtern.data.environment import Environment
from fedtern.runs.recorded_run import EXPERIMENT, Run, number


class Point(NamedTuple):
    """Where a run stood: what it had reached, and what a client's place in it had cost."""

    iteration: int
    accuracy: float
    up: float  # bytes, of the mean client of each round, summed over rounds
    down: float


@dataclass(frozen=True)
class Record:
    """One cell of a grid: the mean over its seeds."""

    task: str
    parameters: int
    method: Mapping[str, Any]
    momentum: float
    learning_rate: float
    weight_decay: float
    environment: Environment
    iterations: int
    own_iterations: int  # iterations that the task has: a run may have been cut short
    seeds: int
    points: tuple[Point, ...]

    @property
    def best(self) -> float:
        """The highest accuracy there was."""
        return max(point.accuracy for point in self.points)

    def reaching(self, accuracy: float) -> Point | None:
        """Where an accuracy was reached first; None if it never was."""
        return next((point for point in self.points if point.accuracy >= accuracy), None)


def is_finished(run: Run) -> bool:
    """Whether a run has come to its end, and tells of it, so that it can be a record."""
    told = run.last.get("iteration", 0) if run.config.get("finished") else 0
    return bool(told and told >= run.config.get("iterations", 0))


def collect(runs: Iterable[Run], tasks: Mapping[str, int] | None = None) -> list[Record]:
    """Finished runs as records, those that differ by their seed only as one.

    ``tasks`` has the iterations of each task; runs of others are as long as they should be.
    """
    cells: dict[str, dict[int, Run]] = {}
    for run in runs:
        if is_finished(run):
            # Curves are averaged point by point, so that they have to be measured alike; another
            # engine may have other cohorts.
            alike = (*EXPERIMENT, "evaluate_every", "engine")
            told = {key: run.config.get(key) for key in alike}
            seeds = cells.setdefault(json.dumps(told, sort_keys=True), {})
            seeds[run.config.get("seed", 0)] = run
    return [_record(list(cells[name].values()), tasks or {}) for name in sorted(cells)]


def _record(runs: list[Run], tasks: Mapping[str, int]) -> Record:
    config = runs[0].config
    curves = [[_point(evaluation) for evaluation in run.evaluations] for run in runs]
    last = runs[0].evaluations[-1]
    task, iterations = str(config["task"]), int(config["iterations"])
    return Record(
        task,
        round(last["dense_bytes"] / 4 / last["iteration"]),
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
        number(evaluation, "accuracy") or 0.0,
        float(evaluation["up_bytes_mean"]),
        float(evaluation["down_bytes_mean"]),
    )


def _mean(points: Sequence[Point]) -> Point:
    accuracy, up, down = (fmean(values) for values in list(zip(*points, strict=True))[1:])
    return Point(points[0].iteration, round(accuracy, 4), round(up), round(down))


def merge(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Both together; of a cell that is there twice, the record of more seeds, or the later one."""
    kept: dict[str, Record] = {}
    for record in (*old, *new):
        cell = _cell(record)
        if cell not in kept or record.seeds >= kept[cell].seeds:
            kept[cell] = record
    return list(kept.values())


def _cell(record: Record) -> str:
    """What tells a record from others."""
    trained = (record.momentum, record.learning_rate, record.weight_decay, record.iterations)
    what = (record.task, record.method, asdict(record.environment), *trained)
    return json.dumps(what, sort_keys=True)


def dump(records: Iterable[Record]) -> bytes:
    """Records as the package ships them; the same records, in any order, give the same bytes."""
    each = sorted(records, key=_cell)
    rows = [{**asdict(r), "points": [list(point) for point in r.points]} for r in each]
    text = json.dumps(rows, sort_keys=True, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def load(data: bytes | None = None) -> list[Record]:
    """Undo ``dump``; without an argument, the records that come with the package."""
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
