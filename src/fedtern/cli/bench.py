"""``fedtern bench``: run the benchmarks of the source tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtern.cli.terminal import report_errors
from fedtern.core.errors import FedternError
from fedtern.core.names import look_up

_SUITE = Path("benchmarks", "suite.py")
# The source tree of an editable install, or the working directory.
_ROOTS = (Path(__file__).parents[3], Path())
_COLUMNS = "{:42} {:>11} {:>11} {:11} {:>8} {:>15}  {}"


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Benchmarks to run.", show_default="all")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List benchmarks.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run fewer and smaller cases, as a smoke test.")
    ] = False,
    large: Annotated[
        bool, typer.Option("--large", help="Also run cases with vectors of 10^8 values.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Directory of the datasets.", show_default="$FEDTERN_DATA"),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object; the table goes to standard error."),
    ] = False,
) -> None:
    """Compare the speed and size of this package with others.

    The benchmarks are part of the source tree, not of the installed package. The exit code is 1 if
    one of them fails.
    """
    with report_errors():
        suite = _find_suite()
        found: dict[str, Any] = json.loads(next(_lines(suite, ["--list"])))
        known: dict[str, str] = found["benchmarks"]
        chosen = names or list(known)
        for name in chosen:
            look_up(name, known, "benchmark")
    if show:
        _print_list(known, as_json)
        return
    flags = [flag for flag, given in (("--quick", quick), ("--large", large)) if given]
    if data_dir is not None:
        os.environ["FEDTERN_DATA"] = str(data_dir.resolve())
    typer.echo(_COLUMNS.format("", "ours", "theirs", "", "ratio", "target", "peer"), err=as_json)
    rows = []
    for name in chosen:
        typer.echo(f"{name}: {known[name]}", err=as_json)
        for line in _lines(suite, [name, *flags]):
            rows.append(json.loads(line))
            typer.echo(_format_row(rows[-1]), err=as_json)
    if as_json:
        typer.echo(json.dumps({"machine": found["machine"], "quick": quick, "rows": rows}))
    if any(row.get("failed") for row in rows):
        raise typer.Exit(1)


def _find_suite() -> Path:
    for root in _ROOTS:
        if (root / _SUITE).is_file():
            return (root / _SUITE).resolve()
    raise FedternError(
        "benchmarks are not part of the installed package: run `fedtern bench` in a clone of the"
        " source tree"
    )


def _lines(suite: Path, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the lines that the suite prints, as soon as it prints them.

    Each benchmark runs in a new process, so that none influences the next.
    """
    command = [sys.executable, str(suite), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # because stdout=PIPE
        yield from process.stdout


def _print_list(known: dict[str, str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"benchmarks": known}))
        return
    for name, about in known.items():
        typer.echo(f"{name:12} {about}")


def _format_row(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    target = row["target"]
    goal = ""
    if target is not None:
        verdict = {True: " yes", False: " NO", None: ""}[row["reached"]]
        goal = f"{target['sense']} {target['bound']:g}{verdict}"
    cells = [_format_number(row[key]) for key in ("ours", "theirs")]
    remark = "; ".join(part for part in (row["peer"], row["note"]) if part)
    ratio = _format_number(row["ratio"])
    return _COLUMNS.format("  " + row["name"], *cells, row["unit"], ratio, goal, remark).rstrip()


def _format_number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
