"""``fedtern tasks``, ``methods`` and ``split``: what there is to choose from."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from fedtern.cli import options as o
from fedtern.cli.errors import report_errors
from fedtern.cli.terminal import console
from fedtern.core.extras import require
from fedtern.core.methods import METHODS, Link, Recipe
from fedtern.core.names import look_up
from fedtern.report.formatting import format_fraction
from fedtern.training.flat import FlatModel
from fedtern.training.tasks import TASKS, get_task


def tasks(as_json: o.AsJson = False) -> None:
    """List what can be learned."""
    rows = [
        {
            "task": task.name,
            "dataset": task.dataset if isinstance(task.dataset, str) else task.dataset.name,
            "parameters": FlatModel(task.build(0)).layout.size,
            "learning_rate": task.learning_rate,
            "momentum": task.momentum,
            "iterations": task.iterations,
        }
        for task in TASKS.values()
    ]
    _print("tasks", rows, as_json)


def methods(
    name: Annotated[str | None, typer.Argument(help="One of them, to read more about.")] = None,
    as_json: o.AsJson = False,
) -> None:
    """List what can be sent, or say where one method comes from."""
    if name is not None:
        with report_errors():
            _explain(look_up(name, METHODS, "method"), as_json)
        return
    rows = [_row(recipe) for recipe in METHODS.values()]
    _print("methods", rows, as_json)


def _row(recipe: Recipe[Any]) -> dict[str, object]:
    method = recipe()
    return {
        "method": recipe.name,
        "parameters": ", ".join(f"{n}={_readable(v)}" for n, v in recipe.defaults.items()),
        "paper": recipe.publication.cite,
        "up": _traffic(method.up, method.local_steps),
        "down": _traffic(method.down, method.local_steps),
        "what is lost": "nothing" if method.up.loss == "none" else method.up.loss,
    }


def _traffic(link: Link, local_steps: int) -> str:
    """Whether a direction is compressed, each update or by their number."""
    if link.loss != "none":
        return "compressed"
    return "delayed" if local_steps > 1 else "exact"


def _readable(value: object) -> str:
    if isinstance(value, float):
        return format_fraction(value) if value < 1 / 2 else f"{value:g}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _explain(recipe: Recipe[Any], as_json: bool) -> None:
    paper = recipe.publication
    if as_json:
        more = {"bibtex": paper.bibtex, "equations": dict(paper.equations), "notes": paper.notes}
        typer.echo(json.dumps({**_row(recipe), "about": recipe.about, **more}))
        return
    typer.echo(f"{recipe.name}: {recipe.__doc__ and inspect.cleandoc(recipe.__doc__)}\n")
    row = _row(recipe)
    for key in ("parameters", "up", "down", "what is lost"):
        typer.echo(f"{key + ':':14}{row[key] or 'none'}")
    typer.echo(f"\n{paper.bibtex or paper.cite}\n")
    for equation, function in paper.equations.items():
        typer.echo(f"{equation:40} {function}")
    for note in paper.notes:
        typer.echo(f"\nUnlike the publication: {note}" if note == paper.notes[0] else note)


def _print(what: str, rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({what: rows}))
        return
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()))
    console(160).print(table)


@o.takes(o.Splitting)
def split(
    options: o.Splitting,
    task: o.Task = "logistic-digits",
    seed: o.Seed = 0,
    data_dir: o.DataDir = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this PNG or SVG file.")] = None,
    as_json: o.AsJson = False,
) -> None:
    """Show who would hold which data."""
    with report_errors():
        environment = options.environment(participation=1.0)
        dataset = get_task(task).load(data_dir)
        dealt = environment.split_dataset(dataset, seed)
        counts = dealt.counts(dataset.train_labels, dataset.num_classes)
        if plot is not None:
            _draw(counts, plot)
    held = (counts > 0).sum(axis=1)
    if as_json:
        typer.echo(json.dumps({"counts": counts.tolist(), "sizes": dealt.sizes}))
        return
    sizes = np.array(dealt.sizes)
    typer.echo(f"{len(dealt)} clients hold {sizes.min():,} to {sizes.max():,} examples each,")
    typer.echo(f"of {held.min()} to {held.max()} classes (on average {held.mean():.2f})")
    if plot is not None:
        typer.echo(f"drawn in {plot}")


def _draw(counts: np.typing.NDArray[np.int64], path: Path) -> None:
    plt = require("matplotlib.pyplot", "report", "drawing a split")
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    left = np.zeros(len(counts))
    for label, column in enumerate(counts.T):
        axes.bar(range(len(counts)), column, bottom=left, width=1.0, label=str(label))
        left += column
    axes.set(xlabel="client", ylabel="examples", xlim=(-0.5, len(counts) - 0.5))
    axes.legend(title="class", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
