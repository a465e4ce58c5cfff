"""Bytes until a target: the traffic of each configuration when its metric first reaches a value."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtern.data.metric_spec import MetricSpec
from fedtern.report.formatting import format_bytes, format_metric
from fedtern.report.groups import Group
from fedtern.report.headline import spread
from fedtern.report.styles import style
from fedtern.runs.recorded_run import RecordedRun, finite_number

_SHARES = (0.8, 0.9, 0.97)  # of the best configuration's final value
_FACTORS = (1.25, 1.1, 1.03)  # where lower values are better


@dataclass(frozen=True)
class TargetRow:
    """One configuration in the table; three cells for each target."""

    method: str
    colour: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class TargetTable:
    """Bytes until each target."""

    metric: str
    targets: tuple[str, ...]
    rows: tuple[TargetRow, ...]


def target_table(groups: Sequence[Group]) -> TargetTable | None:
    """Return the table for the configurations of one metric; None if there are no targets."""
    evaluated = [group for group in groups if group.evaluated]
    if not evaluated or any(group.metric != evaluated[0].metric for group in evaluated):
        return None
    metric = evaluated[0].metric
    finals = [found.mean for group in evaluated if (found := spread(group, "final_metric"))]
    best = metric.best_of(finals)
    if best is None or best <= 0:
        return None
    targets = _targets(metric, best)
    rows = tuple(
        TargetRow(
            group.label,
            style(rank).colour,
            tuple(cell for target in targets for cell in _cells(group, metric, target)),
        )
        for rank, group in enumerate(groups)
        if group.evaluated
    )
    return TargetTable(metric.name, tuple(format_metric(metric.name, t) for t in targets), rows)


def _targets(metric: MetricSpec, best: float) -> list[float]:
    """Return round values that the best configuration has reached, the easiest first."""
    if metric.best == "higher":
        found = [_round_down(best * share) for share in _SHARES]
    else:
        found = [-_round_down(-best * factor) for factor in _FACTORS]
    return [target for target in dict.fromkeys(found) if target > 0]


def _round_down(value: float) -> float:
    """Round towards minus infinity, to two significant digits."""
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{math.floor(value / unit + 1e-9) * unit:.12g}")


def first_reaching(run: RecordedRun, metric: MetricSpec, target: float) -> Mapping[str, Any] | None:
    """Return the first evaluation of a run whose metric is at least as good as a target."""
    for evaluation in run.evaluations:
        value = metric.value(evaluation)
        if value is not None and not metric.is_better(target, value):
            return evaluation
    return None


def _cells(group: Group, metric: MetricSpec, target: float) -> tuple[str, str, str]:
    """Return bytes up and down per client and bytes at the server, mean over seeds."""
    reached = [first_reaching(run, metric, target) for run in group.evaluated]
    found = [evaluation for evaluation in reached if evaluation is not None]
    if not found:
        return "not reached", "", ""
    note = "" if len(found) == len(reached) else f" ({len(found)} of {len(reached)} seeds)"
    up = format_bytes(_mean(found, "up_bytes_mean"))
    down = format_bytes(_mean(found, "down_bytes_mean"))
    server = format_bytes(_mean(found, "up_bytes", "down_bytes"))
    return f"{up}{note}", down, server


def _mean(evaluations: Sequence[Mapping[str, Any]], *names: str) -> float | None:
    sums = []
    for evaluation in evaluations:
        values = [finite_number(evaluation, name) for name in names]
        if None in values:
            return None
        sums.append(sum(value for value in values if value is not None))
    return statistics.fmean(sums)
