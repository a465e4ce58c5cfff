"""The report: one self-contained HTML page that needs no server, network or other file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtern.core.errors import RunError
from fedtern.core.extras import require
from fedtern.data.metric_spec import MetricSpec
from fedtern.report.bar_plots import examples_by_client, time_by_phase
from fedtern.report.figures import (
    Figure,
    capitalised,
    metric_by_bytes,
    metric_by_iteration,
    metric_by_server_bytes,
    traffic,
)
from fedtern.report.formatting import format_value
from fedtern.report.groups import Group, group_runs
from fedtern.report.headline import Headline, headline
from fedtern.report.results import evaluations_csv, results_csv
from fedtern.report.summary import summary, title
from fedtern.report.tables import (
    PrivacyRow,
    ResultRow,
    WireRow,
    environment_rows,
    privacy_rows,
    result_rows,
    run_details,
    wire_rows,
)
from fedtern.report.targets import TargetTable, target_table
from fedtern.runs.recorded_run import RecordedRun, load_run
from fedtern.runs.units import DEFINITIONS, DENSE, MEASURED
from fedtern.store.files import write_atomic

if TYPE_CHECKING:
    from jinja2 import Template

LOSS = MetricSpec("loss", "lower")


def write_report(runs: Sequence[str | PathLike[str]], out: str | PathLike[str]) -> Path:
    """Write one HTML page about some runs.

    Args:
        runs: run directories, as ``fedtern run`` writes them.
        out: the file to write; an existing file is replaced.

    Returns:
        The path of the page.

    Raises:
        RunError: there is no run, a directory is not a run directory, or ``out`` cannot be
            written.
        MissingExtraError: Jinja2 is not installed.

    """
    # The same directory twice would count as two seeds.
    paths = list(dict.fromkeys(Path(run).resolve() for run in runs))
    if not paths:
        raise RunError("No run directories given; a report needs at least one")
    out = Path(out)
    check_target(out)
    page = render([load_run(path) for path in paths])
    out.parent.mkdir(parents=True, exist_ok=True)
    # A path may hold bytes that are not text (surrogates in Python); the page shows their codes.
    content = page.encode(errors="backslashreplace")
    # Two comparisons in one directory write the same page.
    write_atomic(out, [content], concurrent=True)
    return out


def check_target(out: Path) -> None:
    """Check that a page can be written at a path, before the work for it begins.

    Raises:
        RunError: ``out`` is a directory, or its parent is not a writable directory.

    """
    if out.is_dir():
        raise RunError(f"{out} is a directory; name a file, for example {out / 'report.html'}")
    parent = next(parent for parent in out.absolute().parents if parent.exists())
    if not parent.is_dir():
        raise RunError(f"Cannot write {out}: {parent} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise RunError(f"Cannot write {out}: no permission to write to {parent}")


@dataclass(frozen=True)
class TaskSection:
    """Everything that the page shows about the runs of one task.

    Attributes:
        name: Name of the task; empty if the report has only one.
        summary: One paragraph.
        headline: Numbers of the best compromise, if there is one.
        results: Rows of the table of results.
        wire: Rows of the table of network traffic.
        privacy: Rows of the table of differential privacy.
        metric: Heading of the columns of the primary metric.
        targets: Bytes until each target, if there are targets.
        evaluated: Whether there is an evaluation.
        sections: Plots under their headings.

    """

    name: str
    summary: str
    headline: Headline | None
    results: list[ResultRow]
    wire: list[WireRow]
    privacy: list[PrivacyRow]
    metric: str
    targets: TargetTable | None
    evaluated: bool
    sections: dict[str, list[Figure]]


def render(runs: Sequence[RecordedRun]) -> str:
    """Return the HTML of the page.

    Raises:
        MissingExtraError: Jinja2 is not installed.

    """
    template = _template()
    from markupsafe import Markup  # installed with Jinja2

    # Runs of different tasks are not compared, so that labels are unique only within a task.
    runs_by_task: dict[str, list[RecordedRun]] = {}
    for run in runs:
        runs_by_task.setdefault(format_value(run.config.get("task", "")), []).append(run)
    grouped = {task: group_runs(members) for task, members in runs_by_task.items()}
    several = len(grouped) > 1
    tasks = [
        _task_section(task if several else "", groups, runs_by_task[task], number)
        for number, (task, groups) in enumerate(grouped.items())
    ]
    groups = [group for members in grouped.values() for group in members]
    figures = [figure for task in tasks for section in task.sections.values() for figure in section]
    return template.render(
        title=title(groups),
        tasks=tasks,
        runs=run_details(groups),
        environment=environment_rows(groups),
        definitions=f"{DEFINITIONS} {MEASURED} {DENSE}",
        version=version("fedtern"),
        data=_data(groups, runs, figures),
        css=Markup(_asset("page.css")),
        charts_js=Markup(_asset("charts.js")),
        js=Markup(_asset("page.js")),
    )


def _task_section(
    name: str, groups: Sequence[Group], runs: Sequence[RecordedRun], number: int
) -> TaskSection:
    sections = _sections(groups, runs)
    if name:  # plots of all tasks are on one page
        sections = {
            heading: [replace(figure, name=f"task{number}-{figure.name}") for figure in figures]
            for heading, figures in sections.items()
        }
    return TaskSection(
        name=name,
        summary=summary(groups),
        headline=headline(groups),
        results=result_rows(groups),
        wire=wire_rows(groups),
        privacy=privacy_rows(groups),
        metric=_metric_heading(groups),
        targets=target_table(groups),
        evaluated=_evaluated(groups),
        sections=sections,
    )


def _template() -> Template:
    require("jinja2", "report", "a report")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False,
        "allow_nan": False,
        "separators": (",", ":"),
    }
    return environment.from_string(_asset("page.html.j2"))


def _metric_heading(groups: Sequence[Group]) -> str:
    """Return the heading of the columns of the primary metric."""
    names = list(dict.fromkeys(group.metric.name for group in groups))
    return capitalised(names[0]) if len(names) == 1 else "Metric"


def _evaluated(groups: Sequence[Group]) -> bool:
    return any(group.evaluated for group in groups)


def _sections(groups: Sequence[Group], runs: Sequence[RecordedRun]) -> dict[str, list[Figure]]:
    """Return the plots under their headings; no plots of results if no run was evaluated."""
    sections: dict[str, list[Figure]] = {}
    if _evaluated(groups):
        for metric in dict.fromkeys(group.metric for group in groups):
            judged = [group for group in groups if group.metric == metric]
            heading = capitalised(metric.name)
            if heading in (*sections, "Traffic", "Time", "Data") or (
                heading == "Loss" and metric != LOSS
            ):
                heading = f"{heading} ({metric.best} is better)"
            sections[heading] = [
                metric_by_iteration(judged, metric),
                metric_by_bytes(judged, metric, "up"),
                metric_by_bytes(judged, metric, "down"),
            ]
        if any(group.metric != LOSS for group in groups):
            judged = [group for group in groups if group.metric != LOSS]
            sections["Loss"] = [
                metric_by_iteration(judged, LOSS),
                metric_by_server_bytes(judged, LOSS),
            ]
        sections["Traffic"] = [traffic(groups, "up"), traffic(groups, "down")]
        sections["Time"] = [time_by_phase(groups)]
    examples = examples_by_client(runs)
    if examples is not None:
        sections["Data"] = [examples]
    return sections


def _data(groups: Sequence[Group], runs: Iterable[RecordedRun], figures: Iterable[Figure]) -> Any:
    """Return the data that the page's script draws and offers for download."""
    return _finite(
        {
            "figures": {
                figure.name: {
                    "data": figure.data,
                    "layout": figure.layout,
                    "choices": list(figure.choices.values()),
                }
                for figure in figures
            },
            "csv": {"results": results_csv(groups), "evaluations": evaluations_csv(groups)},
            "runs": [dict(run.config) for run in runs],
        }
    )


def _finite(value: Any) -> Any:
    """Replace NaN and infinities by None: JSON has neither, and diverged runs are full of them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def _asset(name: str) -> str:
    return files("fedtern.report").joinpath(name).read_text(encoding="utf-8")
