"""Groups of runs that differ only in their seed: one label, one colour, one mean line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtern.data.metric_spec import MetricSpec
from fedtern.report.formatting import format_value, method_label
from fedtern.runs.recorded_run import EXPERIMENT_KEYS, RecordedRun

# Settings that separate groups. Engines may differ in traffic and cohorts; the model size may be
# the only difference between two Flower apps.
_SETTINGS = (*EXPERIMENT_KEYS, "engine", "parameters", "metric", "training")

SERVER_BYTES = "server_bytes"
"""Name of a measurement: the bytes that the server received and sent."""


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one configuration, with a label that is unique among the groups."""

    label: str
    runs: tuple[RecordedRun, ...]

    @property
    def metric(self) -> MetricSpec:
        """The primary metric of the runs."""
        return MetricSpec.of_run(self.runs[0].config)

    @property
    def evaluated(self) -> tuple[RecordedRun, ...]:
        """The runs with at least one evaluation."""
        return tuple(run for run in self.runs if run.evaluations)


@dataclass(frozen=True)
class Curve:
    """Mean and range over several runs, at the iterations that all of them have evaluated."""

    iterations: tuple[float, ...]
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def group_runs(runs: Sequence[RecordedRun]) -> tuple[Group, ...]:
    """Group runs by configuration, in the order in which configurations first appear."""
    runs_by_key: dict[str, list[RecordedRun]] = {}
    for run in runs:
        key = json.dumps(_configuration(run), sort_keys=True, default=str)
        runs_by_key.setdefault(key, []).append(run)
    grouped = list(runs_by_key.values())
    labels = _labels([members[0] for members in grouped])
    return tuple(
        Group(label, tuple(members)) for label, members in zip(labels, grouped, strict=True)
    )


def curve(runs: Sequence[RecordedRun], x: str, y: str) -> Curve:
    """Average runs at the iterations where every run has both values.

    Args:
        runs: the runs, usually the seeds of one configuration.
        x: name of the measurement for the horizontal axis, such as "iteration".
        y: name of the measurement for the vertical axis, such as "accuracy".

    Returns:
        The means of ``x`` and ``y``, and the range of ``y``.

    """
    tables = [_points(run, x, y) for run in runs]
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    xs = [[table[iteration][0] for table in tables] for iteration in shared]
    ys = [[table[iteration][1] for table in tables] for iteration in shared]
    return Curve(
        iterations=tuple(shared),
        x=tuple(sum(values) / len(values) for values in xs),
        mean=tuple(sum(values) / len(values) for values in ys),
        low=tuple(map(min, ys)),
        high=tuple(map(max, ys)),
    )


def _points(run: RecordedRun, x: str, y: str) -> dict[float, tuple[float, float]]:
    """Return (x, y) by iteration, for the evaluations that have both."""
    points = {}
    for evaluation in run.evaluations:
        iteration = _coordinate(evaluation, "iteration")
        x_value = _coordinate(evaluation, x)
        y_value = _coordinate(evaluation, y)
        if iteration is not None and x_value is not None and y_value is not None:
            points[iteration] = (x_value, y_value)
    return points


def _coordinate(evaluation: Mapping[str, Any], key: str) -> float | None:
    if key == SERVER_BYTES:
        parts = [_coordinate(evaluation, name) for name in ("up_bytes", "down_bytes")]
        return None if None in parts else sum(part for part in parts if part is not None)
    value = MetricSpec(key).value(evaluation)
    # Bytes have logarithmic axes, and before the first round they are zero.
    return None if value == 0 and "bytes" in key else value


def _configuration(run: RecordedRun) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if key in _SETTINGS}


def _labels(runs: Sequence[RecordedRun]) -> list[str]:
    """Label each run by its method, plus the settings that differ between runs of that method."""
    names = [method_label(run.method) for run in runs]
    all_settings = [_settings(run) for run in runs]
    labels = []
    for name, settings in zip(names, all_settings, strict=True):
        others = [
            other
            for other_name, other in zip(names, all_settings, strict=True)
            if other_name == name
        ]
        differing = [
            key for key in settings if any(other.get(key) != settings[key] for other in others)
        ]
        labels.append(" · ".join([name, *(_setting(key, settings[key]) for key in differing)]))
    return numbered(labels)


def _settings(run: RecordedRun) -> dict[str, Any]:
    """Return the configuration without the method, with nested settings at the top level."""
    settings: dict[str, Any] = {}
    for key, value in _configuration(run).items():
        if key not in ("method", "metric"):  # plots and columns name the metric
            settings.update(value if isinstance(value, Mapping) else {key: value})
    # The task determines the model, so its size adds nothing to the task's name.
    settings.pop("parameters", None)
    settings.pop("code", None)  # a digest, which no label should show; labels are numbered instead
    return settings


def _setting(key: str, value: Any) -> str:
    if key == "classes_per_client":
        return f"{format_value(value)} class{'' if value == 1 else 'es'} each"
    if key == "task":
        return format_value(value)
    return f"{key.replace('_', ' ')} {format_value(value)}"


def numbered(labels: Sequence[str]) -> list[str]:
    """Make labels unique by numbering duplicates; legends identify lines by their label.

    >>> numbered(["a", "b", "a"])
    ['a (1)', 'b', 'a (2)']
    """
    totals = Counter(labels)
    seen = Counter[str]()
    unique = []
    for label in labels:
        seen[label] += 1
        unique.append(f"{label} ({seen[label]})" if totals[label] > 1 else label)
    return unique
