"""``fedtern inspect``: show the contents of a message."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtern.core.dtypes import DTYPES
from fedtern.core.errors import FedternError
from fedtern.core.inspection import Inspection, inspect
from fedtern.core.layout import Carried, Layout


def inspect_command(
    file: Annotated[
        Path, typer.Argument(help="File with a message, or with the output of compress().")
    ],
    size: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Parameters of the model, or of each tensor, or their shapes like 10x784,10; most"
            " messages do not contain them.",
        ),
    ] = None,
    carried: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE:N[,DTYPE:N...]",
            help="Dtype and number of values of each carried tensor; needs --size.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the parts of a message and their sizes.

    With the number of parameters, also compares the size with the entropy bound.
    """
    if carried is not None and size is None:
        raise typer.BadParameter("pass --size, too", param_hint="--carried")
    layout = None if size is None else _layout(size, _carried(carried))
    try:
        found = inspect(file.read_bytes(), layout)
    except (FedternError, OSError) as error:
        typer.echo(f"{file}: {getattr(error, 'strerror', None) or error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        derived = {"density": found.density, "ratio_to_float32": found.ratio}
        typer.echo(json.dumps({**asdict(found), "parts": dict(found.parts), **derived}))
    else:
        _print(found, Console(highlight=False))


def _carried(text: str | None) -> tuple[Carried, ...]:
    tensors = []
    for i, part in enumerate(text.split(",") if text else []):
        dtype, _, size = part.partition(":")
        if dtype not in DTYPES or not size.isdecimal():
            raise typer.BadParameter(
                f"expected tensors like float32:64,int64:1, got {part!r}; dtypes are"
                f" {', '.join(DTYPES)}",
                param_hint="--carried",
            )
        tensors.append(Carried(f"carried {i}", (int(size),), dtype))
    return tuple(tensors)


def _layout(sizes: str, carried: tuple[Carried, ...]) -> Layout:
    parts = [part.split("x") for part in sizes.split(",")]
    if not all(side.isdecimal() for part in parts for side in part):
        raise typer.BadParameter(
            f"expected numbers like 7840,10 or shapes like 10x784,10, got {sizes}",
            param_hint="--size",
        )
    shapes = tuple(tuple(map(int, part)) for part in parts)
    if sum(map(math.prod, shapes)) >= 1 << 63:
        raise typer.BadParameter(
            f"{sizes} parameters are too many; the sum must be below 2**63", param_hint="--size"
        )
    return Layout(tuple(map(str, range(len(parts)))), shapes, carried)


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
