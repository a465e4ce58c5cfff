"""The text of the page's tables. The template adds the markup and escapes every value."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedtern.report.formatting import format_metric, format_number, format_value
from fedtern.report.groups import Group
from fedtern.report.results import Result, flatten, results
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
        _megabytes(result.up_bytes),
        _megabytes(result.up_bytes_paper),
        _factor(result.up_ratio),
        _megabytes(result.down_bytes),
        _megabytes(result.down_bytes_paper),
        _factor(result.down_ratio),
        format_number(result.seconds),
    )


def wire_rows(groups: Sequence[Group]) -> list[WireRow]:
    """Return one row for each run whose engine measured its network traffic."""
    return [
        WireRow(
            method=result.method,
            cells=(
                _megabytes(result.total_up_bytes),
                _megabytes(result.wire_up_bytes),
                _megabytes(result.total_down_bytes),
                _megabytes(result.wire_down_bytes),
            ),
        )
        for result in results(groups)
        if result.wire_up_bytes is not None
    ]


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


def _megabytes(nbytes: float | None) -> str:
    return format_number(None if nbytes is None else nbytes / 1e6)


def _factor(ratio: float | None) -> str:
    return "–" if ratio is None else f"{format_number(ratio)} ×"
