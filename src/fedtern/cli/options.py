"""Options that several commands share, and errors that are one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from fedtern.errors import FedternError


def rate(text: str | float) -> float:
    """A number, or a fraction like 1/400."""
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(
            f"expected a number or a fraction like 1/400, got {text}"
        ) from None


Task = Annotated[str, typer.Argument(help="What to learn: see `fedtern tasks`.")]
Clients = Annotated[int, typer.Option(help="How many there are in all.")]
Participation = Annotated[
    float, typer.Option(parser=rate, help="The share that takes part in each round.")
]
ClassesPerClient = Annotated[int, typer.Option(help="How many classes each client holds.")]
BatchSize = Annotated[int, typer.Option(help="Examples in each local iteration.")]
Gamma = Annotated[float, typer.Option(help="Concentration of the data; 1 is balanced.")]
Alpha = Annotated[float, typer.Option(help="Share of the data that is spread evenly.")]
SplitKind = Annotated[str, typer.Option("--split", help="classes, iid, dirichlet or natural.")]
Concentration = Annotated[float, typer.Option(help="Of the Dirichlet split.")]
Public = Annotated[float, typer.Option(help="Share of the data that every client holds.")]
Iterations = Annotated[
    int | None, typer.Option(help="Local iterations in all. [default: the task's]")
]
LearningRate = Annotated[float | None, typer.Option(help="Of SGD. [default: the task's]")]
Momentum = Annotated[float | None, typer.Option(help="Of each client's SGD. [default: the task's]")]
WeightDecay = Annotated[float | None, typer.Option(help="Of SGD. [default: the task's]")]
EvaluateEvery = Annotated[
    int | None, typer.Option(help="Iterations between evaluations. [default: a fiftieth of all]")
]
Rate = Annotated[
    float | None, typer.Option(parser=rate, help="Share of values that is sent, like 1/400.")
]
LocalSteps = Annotated[int | None, typer.Option(help="Iterations between two messages.")]
Scope = Annotated[str | None, typer.Option(help="Rank values over the model or in each tensor.")]
Delta = Annotated[float | None, typer.Option(help="Step of signSGD.")]
Weighted = Annotated[bool | None, typer.Option(help="Weight clients by their examples.")]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Where datasets are. [default: $FEDTERN_DATA, or downloaded once]"),
]
Out = Annotated[Path, typer.Option(help="Where runs are kept, one directory each.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
Memory = Annotated[
    float | None, typer.Option(help="GiB for residuals and momentum before they go to disk.")
]
Threads = Annotated[int, typer.Option(min=1, help="Of torch, on the CPU.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]


@contextmanager
def one_sentence() -> Iterator[None]:
    """Print errors that a person can mend as a sentence, and leave with exit code 1."""
    try:
        yield
    except (FedternError, ValueError) as error:
        typer.echo(f"fedtern: {error}", err=True)
        raise typer.Exit(1) from None
