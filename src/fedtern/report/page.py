"""One page that needs nothing but itself: no server, no network, no other file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from os import PathLike
from pathlib import Path
from string import Template
from typing import Any

from fedtern.core.errors import RunError
from fedtern.core.extras import require
from fedtern.report.bar_plots import splits, time_spent
from fedtern.report.figures import Figure, accuracy_by_bytes, accuracy_by_iteration, traffic
from fedtern.report.groups import Group, group_runs
from fedtern.report.results import evaluations_csv, results_csv
from fedtern.report.summary import summary, title
from fedtern.report.table import details, results_table, wire_table
from fedtern.runs.recorded_run import Run, load_run
from fedtern.store.files import write_atomic

_HINT = (
    "Click a name in a legend to hide its lines in every plot, twice to see it alone; drag to zoom,"
    " double-click to go back."
)
_NOTHING = (
    '<p class="notice">No evaluation yet. The plots are here once a run has been evaluated and the'
    " report is written again.</p>"
)


def write_report(runs: Sequence[str | PathLike[str]], out: str | PathLike[str]) -> Path:
    """Write one HTML page about these run directories; whatever was at ``out`` is replaced."""
    # The same directory twice would count as two seeds.
    paths = list(dict.fromkeys(Path(run).resolve() for run in runs))
    if not paths:
        raise RunError("a report needs at least one run directory")
    out = Path(out)
    check_target(out)
    page = render([load_run(path) for path in paths])
    out.parent.mkdir(parents=True, exist_ok=True)
    # Whoever has the page open or is copying it never sees half of it. A path that is no text is
    # one all the same, and a page about it is better than none.
    write_atomic(out, [page.encode(errors="backslashreplace")], concurrent=True)
    return out


def check_target(out: Path) -> None:
    """Refuse a place where no page can be written, before anybody works for it."""
    if out.is_dir():
        raise RunError(f"{out} is a directory: name the page, like {out / 'report.html'}")
    there = next(parent for parent in out.absolute().parents if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "may not be written to" if there.is_dir() else "is no directory"
        raise RunError(f"{out} cannot be written: {there} {why}")


def render(runs: Sequence[Run]) -> str:
    """The page as text."""
    plotly = require("plotly.offline", "report", "a report").get_plotlyjs()
    groups = group_runs(runs)
    figures = _figures(groups, runs)
    return Template(_asset("page.html")).substitute(
        title=escape(title(groups)),
        summary=escape(summary(groups)),
        results=results_table(groups) + wire_table(groups),
        sections=_sections(figures),
        details=details(groups),
        hint=_HINT if figures else "",
        version=escape(version("fedtern")),
        css=_asset("page.css"),
        js=_asset("page.js"),
        plotly=plotly.replace("</script", "<\\/script"),
        data=_json(_data(groups, runs, figures)),
    )


def _figures(groups: Sequence[Group], runs: Sequence[Run]) -> dict[str, list[Figure]]:
    """The plots under their headings; none where nothing has been measured."""
    split = splits(runs)
    found: dict[str, list[Figure]] = {}
    if any(group.evaluated for group in groups):
        found["Accuracy"] = [
            accuracy_by_iteration(groups),
            accuracy_by_bytes(groups, "up"),
            accuracy_by_bytes(groups, "down"),
        ]
        found["Traffic"] = [traffic(groups, "up"), traffic(groups, "down")]
        found["Time"] = [time_spent(groups)]
    if split is not None:
        found["Data"] = [split]
    return found


def _sections(figures: Mapping[str, Sequence[Figure]]) -> str:
    nothing = "" if "Accuracy" in figures else _NOTHING
    return nothing + "\n".join(
        f"<section><h2>{heading}</h2>"
        f'<div class="figures">{"".join(map(_figure, shown))}</div></section>'
        for heading, shown in figures.items()
    )


def _figure(figure: Figure) -> str:
    options = "".join(f"<option>{escape(name)}</option>" for name in figure.choices)
    choice = (
        f'<label class="choice">Split of <select data-choice="{figure.name}">{options}</select>'
        "</label>"
    )
    return (
        f'<figure class="{"wide" if figure.wide else "half"}">'
        f'<figcaption><h3 id="{figure.name}-title">{figure.title}</h3>'
        f"<p>{escape(figure.note)}</p>{choice if options else ''}</figcaption>"
        f'<div class="plot" id="{figure.name}" role="group"'
        f' aria-labelledby="{figure.name}-title"></div></figure>'
    )


def _data(groups: Sequence[Group], runs: Iterable[Run], figures: Mapping[str, Any]) -> Any:
    """What the page draws and hands out: plots, tables in full, configurations and splits."""
    return {
        "figures": {
            figure.name: {
                "data": figure.data,
                "layout": figure.layout,
                "choices": list(figure.choices.values()),
            }
            for shown in figures.values()
            for figure in shown
        },
        "csv": {"results": results_csv(groups), "evaluations": evaluations_csv(groups)},
        "runs": [dict(run.config) for run in runs],
    }


def _json(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """JSON has no NaN, and a diverged run is full of it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def _asset(name: str) -> str:
    return files("fedtern.report").joinpath("assets", name).read_text(encoding="utf-8")
