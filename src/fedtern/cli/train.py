"""``fedtern run`` and ``compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from fedtern.cli import options as o
from fedtern.cli.engines import engine
from fedtern.cli.errors import report_errors
from fedtern.cli.progress import Watch, against_dense, pace, summary
from fedtern.cli.signals import checkpoint_seconds, command_line, interruptible
from fedtern.cli.terminal import console
from fedtern.core.errors import MissingExtraError
from fedtern.report import write_report
from fedtern.report.page import check_target
from fedtern.runs import LOCAL_ENGINE, Evaluation, Experiment, open_run
from fedtern.transports.local.launch import train_run


@o.takes(o.Simulating)
def run(
    context: typer.Context,
    options: o.Simulating,
    task: o.Task = "logistic-digits",
    method: Annotated[str, typer.Option(help="What to send, like stc or stc:p_up=1/100.")] = "stc",
    config: Annotated[
        Path | None, typer.Option(help="A TOML file that says what to train, in place of flags.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on where a run was stopped.")] = False,
) -> None:
    """Train a federation, by default the paper's base configuration of a hundred clients."""
    with report_errors():
        if config is None:
            experiment = options.experiment(task, method, strict=True)
        else:
            _nothing_beside(config, context)
            experiment = Experiment.from_toml(config)
        found, path = _go(experiment, options, resume=resume)
    if options.as_json:
        typer.echo(json.dumps({"run": str(path), **found.to_json()}, allow_nan=False))
    else:
        typer.echo(f"{experiment.label}: {summary(found)}, {pace(found)}")
        typer.echo(f"kept in {path}, with the model; see it with: fedtern report {path}")


@o.takes(o.Simulating)
def compare(
    options: o.Simulating,
    methods: Annotated[list[str], typer.Argument(help="Methods, like stc fedavg:local_steps=25.")],
    task: Annotated[str, typer.Option(help="What to learn.")] = "logistic-digits",
    html: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("report.html"),
    resume: Annotated[
        bool, typer.Option(help="Go on with runs that were stopped; always done here.")
    ] = True,
) -> None:
    """Train the same federation with several methods; runs that are finished are not repeated.

    Parameters such as --p-up go to every method that has them; method:parameter=value to one.
    """
    with report_errors():
        check_target(html)
        experiments = [options.experiment(task, method, strict=False) for method in methods]
        results = [(e, *_go(e, options, resume=resume)) for e in experiments]
    if not options.as_json:
        _print(results)
    written = None
    try:
        with report_errors():
            written = _report([path for _, _, path in results], html)
    finally:  # what was trained for is said, whatever becomes of the page
        if options.as_json:
            rows = [{"method": e.label, "run": str(p), **f.to_json()} for e, f, p in results]
            found = {"runs": rows, "report": written and str(written)}
            typer.echo(json.dumps(found, allow_nan=False))
    if written is not None and not options.as_json:
        typer.echo(f"report: {written.resolve()}")


def _nothing_beside(config: Path, context: typer.Context) -> None:
    """Refuse what the file would overrule without a word."""
    given = [name for name in ("task", "method", *o.EXPERIMENT) if _typed(name, context)]
    if given:
        flags = ", ".join(n if n == "task" else f"--{n.replace('_', '-')}" for n in given)
        raise ValueError(f"{config} says what to train: write {flags} there, or leave it out")


def _typed(name: str, context: typer.Context) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _go(experiment: Experiment, options: o.Simulating, *, resume: bool) -> tuple[Evaluation, Path]:
    """Run an experiment to its end and show how far it is."""
    try:
        torch.empty(0, device=options.device)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device {options.device!r} cannot be used: {reason}") from None
    make = engine(options.engine, experiment, options.data_dir, options.device)
    this = open_run(experiment, options.out, command=command_line(), engine=options.engine)
    if this.is_finished():
        return this.final_evaluation(), this.path
    if this.checkpoint_path.exists() and not resume:
        raise ValueError(f"{this.path} has been started before: add --resume to go on")
    torch.set_num_threads(options.threads)
    with (
        interruptible() as interrupts,
        Watch(experiment.label, experiment.iterations, quiet=options.as_json) as watch,
    ):
        for found in train_run(
            this,
            options.data_dir,
            device=options.device,
            memory_bytes=options.memory_bytes,
            workers=0 if options.threads > 1 else options.workers,
            checkpoint_seconds=checkpoint_seconds(),
            stopped=lambda: len(interrupts) > 0,
            progress=watch.moved,
            make_federation=make,
        ):
            watch.evaluated(found)
    if not this.is_finished():
        on = "go on" if options.engine == LOCAL_ENGINE else "begin again"
        typer.echo(f"stopped; {on} with the same command and --resume ({this.path})", err=True)
        raise typer.Exit(130)
    return this.final_evaluation(), this.path


def _report(paths: list[Path], out: Path) -> Path | None:
    """The report, where what it needs is installed."""
    try:
        return write_report(paths, out)
    except MissingExtraError as error:
        typer.echo(f"no report: {error}", err=True)
        return None


def _print(results: list[tuple[Experiment, Evaluation, Path]]) -> None:
    columns = ("method", "accuracy", "MB up", "MB down", "up vs dense", "down vs dense", "seconds")
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for experiment, found, _ in results:
        table.add_row(
            experiment.label,
            f"{found.accuracy:.2%}",
            f"{found.up_bytes_mean / 1e6:.3f}",
            f"{found.down_bytes_mean / 1e6:.3f}",
            *against_dense(found),
            f"{sum(found.seconds.values()):.1f}",
        )
    console(120).print(table)
