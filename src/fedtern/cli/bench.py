"""``fedtern bench``: how far from the limit we are, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtern.cli.errors import report_errors
from fedtern.core.errors import FedternError
from fedtern.core.names import look_up

_SUITE = Path("benchmarks", "suite.py")
_ROOTS = (Path(__file__).parents[3], Path())  # of an editable install, or where we are
_COLUMNS = "{:42} {:>11} {:>11} {:11} {:>8} {:>15}  {}"


def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Which; all by default.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Say what there is.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller and fewer: to see that it works.")
    ] = False,
    large: Annotated[bool, typer.Option("--large", help="Vectors of 10^8 values, too.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where datasets are. [default: $FEDTERN_DATA]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and the table as an error.")
    ] = False,
) -> None:
    """Measure this package against its peers and the machine's limits."""
    with report_errors():
        suite = _find()
        found: dict[str, Any] = json.loads(next(_lines(suite, ["--list"])))
        known: dict[str, str] = found["benchmarks"]
        chosen = names or list(known)
        for name in chosen:
            look_up(name, known, "benchmark")
    if show:
        _list(known, as_json)
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
            typer.echo(_line(rows[-1]), err=as_json)
    if as_json:
        typer.echo(json.dumps({"machine": found["machine"], "quick": quick, "rows": rows}))
    if any(row.get("failed") for row in rows):
        raise typer.Exit(1)


def _find() -> Path:
    for root in _ROOTS:
        if (root / _SUITE).is_file():
            return (root / _SUITE).resolve()
    raise FedternError(
        "benchmarks are not part of the installed package: run this in a directory with the source"
        " tree of fedtern"
    )


def _lines(suite: Path, arguments: Sequence[str]) -> Iterator[str]:
    """What a benchmark prints, as it does; each has a process that nothing else has touched."""
    command = [sys.executable, str(suite), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # it is a pipe
        yield from process.stdout


def _list(known: dict[str, str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"benchmarks": known}))
        return
    for name, about in known.items():
        typer.echo(f"{name:12} {about}")


def _line(row: dict[str, Any]) -> str:
    """A row as people read it."""
    target = row["target"]
    goal = ""
    if target is not None:
        verdict = {True: " yes", False: " NO", None: ""}[row["reached"]]
        goal = f"{target['sense']} {target['bound']:g}{verdict}"
    cells = [_figure(row[key]) for key in ("ours", "theirs")]
    words = "; ".join(part for part in (row["peer"], row["note"]) if part)
    ratio = _figure(row["ratio"])
    return _COLUMNS.format("  " + row["name"], *cells, row["unit"], ratio, goal, words).rstrip()


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
