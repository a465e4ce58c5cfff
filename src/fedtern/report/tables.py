"""The text of the page's tables. The template adds the markup and escapes every value."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtern.report.formatting import format_bytes, format_metric, format_number, format_value
from fedtern.report.groups import Group
from fedtern.report.results import Result, flatten, results
from fedtern.report.results import result as result_of
from fedtern.report.styles import style
from fedtern.runs.recorded_run import RecordedRun


@dataclass(frozen=True)
class ResultRow:
    """One run in the table of results; ``cells`` is empty if the run has no evaluation yet."""

    method: str
    colour: str
    seed: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class WireRow:
    """One run in the table of network traffic."""

    method: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class PrivacyRow:
    """One run in the table of privacy."""

    method: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class RunDetails:
    """The configuration of one run, and the command that repeats it (empty if unknown)."""

    name: str
    digest: str
    path: str
    command: str
    settings: tuple[tuple[str, str], ...]


def result_rows(groups: Sequence[Group]) -> list[ResultRow]:
    """Return one row for each run, in the order of the groups."""
    colours = {group.label: style(rank).colour for rank, group in enumerate(groups)}
    return [
        ResultRow(
            method=result.method,
            colour=colours[result.method],
            seed="–" if result.seed is None else format_value(result.seed),
            cells=_result_cells(result),
        )
        for result in results(groups)
    ]


def _result_cells(result: Result) -> tuple[str, ...]:
    if result.iterations is None:
        return ()
    return (
        format_metric(result.metric, result.final_metric),
        format_metric(result.metric, result.best_metric),
        _progress(result.iterations, result.planned_iterations),
        format_bytes(result.up_bytes),
        format_bytes(result.up_bytes_paper),
        _factor(result.up_ratio),
        format_bytes(result.down_bytes),
        format_bytes(result.down_bytes_paper),
        _factor(result.down_ratio),
        format_bytes(result.total_up_bytes),
        format_bytes(result.total_down_bytes),
        format_number(result.seconds),
    )


def wire_rows(groups: Sequence[Group]) -> list[WireRow]:
    """Return one row for each run whose engine measured its network traffic."""
    return [
        WireRow(
            method=result.method,
            cells=(
                format_bytes(result.total_up_bytes),
                format_bytes(result.wire_up_bytes),
                format_bytes(result.total_down_bytes),
                format_bytes(result.wire_down_bytes),
            ),
        )
        for result in results(groups)
        if result.wire_up_bytes is not None
    ]


def privacy_rows(groups: Sequence[Group]) -> list[PrivacyRow]:
    """Return one row for each run with differential privacy."""
    return [
        PrivacyRow(
            method=result.method,
            cells=(
                format_value(_privacy_setting(run, "model")),
                format_value(_privacy_setting(run, "clip")),
                format_value(_privacy_setting(run, "noise_multiplier")),
                f"{result.participations or 0:.0f}",
                format_number(result.epsilon),
                format_value(_privacy_setting(run, "budget") or "–"),
                format_value(result.delta),
            ),
        )
        for group in groups
        for run in group.runs
        if (result := result_of(run, group.label)).epsilon is not None
    ]


def _privacy_setting(run: RecordedRun, name: str) -> Any:
    settings = run.config.get("privacy")
    return settings.get(name) if isinstance(settings, dict) else None


def environment_rows(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Return the software and hardware of the runs; a value that differs names its runs."""
    machines = [
        (run, machine)
        for group in groups
        for run in group.runs
        if isinstance(machine := run.config.get("machine"), Mapping)
    ]
    rows = []
    for name in dict.fromkeys(name for _, machine in machines for name in machine):
        values = Counter(format_value(machine.get(name)) for _, machine in machines)
        parts = (f"{value} ({count} runs)" for value, count in values.items())
        rows.append((name, next(iter(values)) if len(values) == 1 else ", ".join(parts)))
    return rows


def run_details(groups: Sequence[Group]) -> list[RunDetails]:
    """Return the configuration of each run, in the order of the groups."""
    return [_details(run, group.label) for group in groups for run in group.runs]


def _details(run: RecordedRun, label: str) -> RunDetails:
    seed = run.config.get("seed")
    settings = ((key, _exact(value)) for key, value in flatten(run.config) if key != "command")
    return RunDetails(
        name=label if seed is None else f"{label}, seed {format_value(seed)}",
        digest=run.digest,
        path=str(run.path),
        command=_command_line(run.config.get("command")),
        settings=tuple(settings),
    )


def _command_line(command: Any) -> str:
    if not command:
        return ""
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command)


def _exact(value: Any) -> str:
    """Format a setting with all its digits, unlike in a label."""
    return repr(value) if isinstance(value, float) else format_value(value)


def _progress(iterations: float, planned: float | None) -> str:
    if planned and iterations < planned:
        return f"{iterations:,.0f} of {planned:,.0f}"
    return f"{iterations:,.0f}"


def _factor(ratio: float | None) -> str:
    return "–" if ratio is None else f"{format_number(ratio)} ×"
