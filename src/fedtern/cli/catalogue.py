"""``fedtern tasks``, ``methods`` and ``split``: what there is to choose from."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedtern.cli import options as o
from fedtern.cli.errors import one_sentence
from fedtern.extras import require
from fedtern.methods import METHODS
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


def methods(as_json: o.AsJson = False) -> None:
    """List what can be sent."""
    rows = []
    for name, make in METHODS.items():
        parameters = inspect.signature(make).parameters.values()
        shown = ", ".join(
            f"{p.name}={p.default:.4g}" if isinstance(p.default, float) else f"{p.name}={p.default}"
            for p in parameters
        )
        about = (inspect.getdoc(make) or "").partition("\n")[0]
        rows.append({"method": name, "parameters": shown, "about": about})
    _print("methods", rows, as_json)


def _print(what: str, rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({what: rows}))
        return
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()))
    Console(highlight=False).print(table)


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
    with one_sentence():
        environment = options.environment(participation=1.0)
        dataset = get_task(task).load(data_dir)
        dealt = environment.deal(dataset, seed)
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
