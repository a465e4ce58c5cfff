"""``fedtern inspect``: show the contents of a message."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtern.core.errors import FedternError
from fedtern.core.inspection import Inspection, inspect
from fedtern.core.layout import Layout


def inspect_command(
    file: Annotated[
        Path, typer.Argument(help="File with a message, or with the output of compress().")
    ],
    size: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Parameters of the model, or of each tensor; most messages do not contain them.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the parts of a message and their sizes.

    With the number of parameters, also compares the size with the entropy bound.
    """
    try:
        found = inspect(file.read_bytes(), None if size is None else _layout(size))
    except (FedternError, OSError) as error:
        typer.echo(f"{file}: {getattr(error, 'strerror', None) or error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        derived = {"density": found.density, "ratio_to_float32": found.ratio}
        typer.echo(json.dumps({**asdict(found), "parts": dict(found.parts), **derived}))
    else:
        _print(found, Console(highlight=False))


def _layout(sizes: str) -> Layout:
    parts = sizes.split(",")
    if not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(f"expected numbers like 7840,10, got {sizes}", param_hint="--size")
    if sum(map(int, parts)) >= 1 << 63:
        raise typer.BadParameter(
            f"{sizes} parameters are too many; the sum must be below 2**63", param_hint="--size"
        )
    return Layout(tuple(map(str, range(len(parts)))), tuple((int(part),) for part in parts))


def _print(found: Inspection, console: Console) -> None:
    console.print(f"[bold]{found.kind}[/bold], {found.nbytes:,} bytes")
    for name, fact in found.facts.items():
        console.print(f"  {name}: {escape(fact)}")
    table = Table("part", "bytes", "share", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, nbytes in found.parts:
        table.add_row(name, f"{nbytes:,}", f"{nbytes / found.nbytes:.1%}")
    console.print(table)
    if found.size is None:
        console.print(
            "Pass the number of parameters with --size to see the density and the entropy bound."
        )
        return
    smaller = f", {found.ratio:,.0f} times smaller than float32" if found.ratio else ""
    console.print(f"{found.size:,} parameters{smaller}")
    if found.nonzeros is not None and found.density is not None:
        console.print(f"{found.nonzeros:,} non-zeros, density {found.density:.4%}")
    if found.bits_per_nonzero and found.entropy_bound:
        more = found.bits_per_nonzero / found.entropy_bound - 1
        console.print(
            f"{found.bits_per_nonzero:.3f} bits per non-zero, including framing; entropy bound"
            f" {found.entropy_bound:.3f} ({more:+.1%})"
        )
