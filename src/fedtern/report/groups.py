"""Runs that differ in nothing but their seed belong together: one name, one colour, one band."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtern.report.formatting import format_value, method_label
from fedtern.runs.recorded_run import EXPERIMENT_KEYS, RecordedRun, finite_number

# Another engine may have a network of its own, with other traffic and other cohorts; and a model's
# size may be all that tells two of Flower's apps apart.
_TELLING = (*EXPERIMENT_KEYS, "engine", "parameters")


@dataclass(frozen=True, eq=False)
class Group:
    """The seeds of one configuration, under a label that no other configuration has."""

    label: str
    runs: tuple[RecordedRun, ...]

    @property
    def evaluated(self) -> tuple[RecordedRun, ...]:
        """The runs that have something to show."""
        return tuple(run for run in self.runs if run.evaluations)


@dataclass(frozen=True)
class Curve:
    """The mean of several seeds over the iterations that all of them have reached."""

    iterations: tuple[float, ...]
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def group_runs(runs: Sequence[RecordedRun]) -> tuple[Group, ...]:
    """Gather the seeds of each configuration, in the order in which they first appear."""
    found: dict[str, list[RecordedRun]] = {}
    for run in runs:
        found.setdefault(json.dumps(_experiment(run), sort_keys=True, default=str), []).append(run)
    gathered = list(found.values())
    labels = _labels([members[0] for members in gathered])
    return tuple(
        Group(label, tuple(members)) for label, members in zip(labels, gathered, strict=True)
    )


def curve(runs: Sequence[RecordedRun], x: str, y: str) -> Curve:
    """``y`` against ``x`` at the iterations where every one of the runs has both."""
    tables = [_points(run, x, y) for run in runs]
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    xs = [[table[i][0] for table in tables] for i in shared]
    ys = [[table[i][1] for table in tables] for i in shared]
    return Curve(
        tuple(shared),
        tuple(sum(values) / len(values) for values in xs),
        tuple(sum(values) / len(values) for values in ys),
        tuple(map(min, ys)),
        tuple(map(max, ys)),
    )


def _points(run: RecordedRun, x: str, y: str) -> dict[float, tuple[float, float]]:
    found = {}
    for evaluation in run.evaluations:
        at, *point = (_drawable(evaluation, key) for key in ("iteration", x, y))
        if at is not None and point[0] is not None and point[1] is not None:
            found[at] = (point[0], point[1])
    return found


def _drawable(evaluation: Mapping[str, Any], key: str) -> float | None:
    value = finite_number(evaluation, key)
    # Bytes have logarithmic axes, and before the first round nothing has been sent.
    return None if value == 0 and "bytes" in key else value


def _experiment(run: RecordedRun) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if key in _TELLING}


def _labels(runs: Sequence[RecordedRun]) -> list[str]:
    """The methods' names, and where two are alike also what tells their runs apart."""
    names = [method_label(run.method) for run in runs]
    settings = [_settings(run) for run in runs]
    labels = []
    for name, mine in zip(names, settings, strict=True):
        rivals = [other for rival, other in zip(names, settings, strict=True) if rival == name]
        differing = [key for key in mine if any(other.get(key) != mine[key] for other in rivals)]
        labels.append(" · ".join([name, *(_told(key, mine[key]) for key in differing)]))
    return numbered(labels)


def _settings(run: RecordedRun) -> dict[str, Any]:
    """The configuration but for the method, one level deep, in the order it was written."""
    found: dict[str, Any] = {}
    for key, value in _experiment(run).items():
        if key == "method":
            continue
        found.update(value if isinstance(value, Mapping) else {key: value})
    # A task fixes its model: its size would only say the same thing twice.
    found.pop("parameters", None)
    return found


def _told(key: str, value: Any) -> str:
    if key == "classes_per_client":
        return f"{format_value(value)} class{'' if value == 1 else 'es'} each"
    return (
        format_value(value) if key == "task" else f"{key.replace('_', ' ')} {format_value(value)}"
    )


def numbered(labels: Sequence[str]) -> list[str]:
    """No two alike, whatever was configured: plots and their legends go by the label.

    >>> numbered(["a", "b", "a"])
    ['a (1)', 'b', 'a (2)']
    """
    often, seen = Counter(labels), Counter[str]()
    found = []
    for label in labels:
        seen[label] += 1
        found.append(f"{label} ({seen[label]})" if often[label] > 1 else label)
    return found
