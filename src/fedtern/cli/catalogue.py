"""``fedtern tasks``, ``methods`` and ``split``: list and show what a federation can train on."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedtern.cli.options import (
    AsJson,
    DataDir,
    Imports,
    Seed,
    SplitOptions,
    Task,
    load_tasks,
    with_options,
)
from fedtern.cli.terminal import console, report_errors
from fedtern.core.extras import require
from fedtern.core.methods import Link, Recipe
from fedtern.core.methods.aggregate_text import AGGREGATE, supports_aggregates
from fedtern.core.methods.server_optimizers import SERVER_PARAMETERS
from fedtern.core.names import look_up
from fedtern.report.formatting import format_fraction
from fedtern.runs.method_registry import known_methods

_LOSS = "what is lost"  # a key of the JSON output
_HEADERS = {_LOSS: "compression error"}  # headers of the table that differ from the JSON key


def tasks(imports: Imports = None, as_json: AsJson = False) -> None:
    """List the built-in tasks and your own.

    Your own tasks are those of installed packages and of --import.
    """
    from fedtern.training.tasks import TASKS

    with report_errors():
        load_tasks(imports)
    rows = [
        {
            "task": task.name,
            "dataset": task.dataset if isinstance(task.dataset, str) else task.dataset.name,
            "parameters": task.flat_model(0).layout.size,
            "learning_rate": task.learning_rate,
            "momentum": task.momentum,
            "iterations": task.iterations,
        }
        for task in TASKS.values()
    ]
    _print_rows("tasks", rows, as_json)


def methods(
    name: Annotated[str | None, typer.Argument(help="Method to describe.")] = None,
    as_json: AsJson = False,
) -> None:
    """List methods, or describe one and its publication."""
    if name is not None:
        with report_errors():
            _describe(look_up(name, known_methods(), "method"), as_json)
        return
    # A line has no room for these parameters.
    hidden = () if as_json else ("participation", "scope", AGGREGATE, *SERVER_PARAMETERS)
    rows = [_row(recipe, hidden) for recipe in known_methods().values()]
    _print_rows("methods", rows, as_json)


def _row(recipe: Recipe[Any], hidden: Collection[str] = ()) -> dict[str, object]:
    method = recipe()
    absent = () if supports_aggregates(method) else (AGGREGATE,)
    shown = {
        name: value
        for name, value in recipe.defaults.items()
        if name not in hidden and name not in absent
    }
    return {
        "method": recipe.name,
        "parameters": ", ".join(f"{n}={_format_value(v)}" for n, v in shown.items()),
        "paper": recipe.publication.cite,
        "up": _traffic(method.up, method.local_steps),
        "down": _traffic(method.down, method.local_steps),
        _LOSS: "nothing" if method.up.loss == "none" else method.up.loss,
    }


def _traffic(link: Link, local_steps: int) -> str:
    """Return how a direction saves traffic: by compression, by fewer messages or not at all."""
    if link.loss != "none":
        return "compressed"
    return "delayed" if local_steps > 1 else "exact"


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return format_fraction(value) if value < 1 / 2 else f"{value:g}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _describe(recipe: Recipe[Any], as_json: bool) -> None:
    paper = recipe.publication
    if as_json:
        more = {"bibtex": paper.bibtex, "equations": dict(paper.equations), "notes": paper.notes}
        typer.echo(json.dumps({**_row(recipe), "about": recipe.about, **more}))
        return
    typer.echo(f"{recipe.name}: {recipe.__doc__ and inspect.cleandoc(recipe.__doc__)}\n")
    row = _row(recipe)
    for key in ("parameters", "up", "down", _LOSS):
        typer.echo(f"{_HEADERS.get(key, key) + ':':19}{row[key] or 'none'}")
    typer.echo(f"\n{paper.bibtex or paper.cite}\n")
    for equation, function in paper.equations.items():
        typer.echo(f"{equation:40} {function}")
    if paper.notes:
        typer.echo("\nDifferences from the publication:")
    for note in paper.notes:
        typer.echo(note)


def _print_rows(key: str, rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    """Print rows as a table, or as a JSON object with one key."""
    if as_json:
        typer.echo(json.dumps({key: rows}))
        return
    from rich.table import Table

    table = Table(*(_HEADERS.get(name, name) for name in rows[0]), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()))
    console(200).print(table)


@with_options(SplitOptions)
def split(
    options: SplitOptions,
    task: Task = "logistic-digits",
    seed: Seed = 0,
    data_dir: DataDir = None,
    imports: Imports = None,
    plot: Annotated[Path | None, typer.Option(help="PNG or SVG file to draw the split to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how the data is split among clients."""
    from fedtern.training.tasks import get_task

    with report_errors():
        load_tasks(imports)
        environment = options.environment(participation=1.0)
        dataset = get_task(task).load(data_dir)
        dealt = environment.split_dataset(dataset, seed)
        counts = dealt.counts(dataset.classes, dataset.num_classes or 1)
        if plot is not None:
            _plot(counts, plot)
    held = (counts > 0).sum(axis=1)
    if as_json:
        typer.echo(json.dumps({"counts": counts.tolist(), "sizes": dealt.sizes}))
        return
    sizes = np.array(dealt.sizes)
    typer.echo(f"clients:             {len(dealt):,}")
    typer.echo(f"examples per client: {sizes.min():,} to {sizes.max():,}")
    if dataset.num_classes is not None:
        typer.echo(f"classes per client:  {held.min()} to {held.max()} (mean {held.mean():.2f})")
    if plot is not None:
        typer.echo(f"plot: {plot}")


def _plot(counts: np.typing.NDArray[np.int64], path: Path) -> None:
    plt = require("matplotlib.pyplot", "report", "--plot")
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    left = np.zeros(len(counts))
    for label, column in enumerate(counts.T):
        axes.bar(range(len(counts)), column, bottom=left, width=1.0, label=str(label))
        left += column
    axes.set(xlabel="client", ylabel="examples", xlim=(-0.5, len(counts) - 0.5))
    axes.legend(title="class", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
