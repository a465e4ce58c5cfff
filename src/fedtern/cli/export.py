"""``fedtern export``: the model that a run has trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedtern.cli import options as o
from fedtern.cli.errors import one_sentence
from fedtern.experiments import find_run
from fedtern.files import write_whole
from fedtern.snapshot import Snapshot


def export(
    run: Annotated[Path, typer.Argument(help="The directory of a run, finished or not.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model.safetensors"),
    as_json: o.AsJson = False,
) -> None:
    """Write the model of a run's last checkpoint as a safetensors file, parameters by name."""
    with one_sentence():
        found = find_run(run)
        weights = found.weights()
        write_whole(out, Snapshot(weights, {"experiment": found.experiment.to_json()}).chunks())
    parameters = sum(weight.size for weight in weights.values())
    if as_json:
        typer.echo(json.dumps({"model": str(out), "parameters": parameters}))
    else:
        typer.echo(f"{parameters:,} parameters in {len(weights)} tensors: {out}")
