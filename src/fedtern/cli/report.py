"""``fedtern report``: write a page about runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedtern.cli.terminal import report_errors
from fedtern.report import write_report


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write an HTML page with tables and plots of one or more runs."""
    with report_errors():
        written = write_report(runs, out).resolve()
    typer.echo(json.dumps({"report": str(written)}) if as_json else f"report: {written}")
