"""``fedtern run``, ``compare`` and ``report``."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedtern.cli import options as o
from fedtern.cli.progress import Watch, summary
from fedtern.engines.local import Round
from fedtern.environment import Environment
from fedtern.experiments import Experiment, open_run, parse_method
from fedtern.experiments.experiment import complete


def run(
    task: o.Task = "logistic-digits",
    method: Annotated[str, typer.Option(help="What to send, like stc or stc:p_up=1/100.")] = "stc",
    clients: o.Clients = 100,
    participation: o.Participation = 0.1,
    classes_per_client: o.ClassesPerClient = 10,
    batch_size: o.BatchSize = 20,
    gamma: o.Gamma = 1.0,
    alpha: o.Alpha = 0.1,
    kind: o.SplitKind = "classes",
    concentration: o.Concentration = 0.5,
    public: o.Public = 0.0,
    iterations: o.Iterations = None,
    learning_rate: o.LearningRate = None,
    momentum: o.Momentum = None,
    weight_decay: o.WeightDecay = None,
    evaluate_every: o.EvaluateEvery = None,
    p_up: o.Rate = None,
    p_down: o.Rate = None,
    local_steps: o.LocalSteps = None,
    scope: o.Scope = None,
    delta: o.Delta = None,
    weighted: o.Weighted = None,
    seed: o.Seed = 0,
    data_dir: o.DataDir = None,
    out: o.Out = Path("runs"),
    resume: Annotated[bool, typer.Option(help="Go on where a run was stopped.")] = False,
    config: Annotated[Path | None, typer.Option(help="A TOML file in place of all these.")] = None,
    device: o.Device = "cpu",
    memory: o.Memory = None,
    threads: o.Threads = 1,
    as_json: o.AsJson = False,
) -> None:
    """Train a federation, by default the paper's base configuration of a hundred clients."""
    flags = {
        "p_up": p_up,
        "p_down": p_down,
        "local_steps": local_steps,
        "scope": scope,
        "delta": delta,
        "weighted": weighted,
    }
    with o.one_sentence():
        if config is not None:
            experiment = Experiment.from_toml(config)
        else:
            environment = Environment(
                clients, participation, classes_per_client, batch_size, gamma, alpha, kind,
                concentration, public,
            )  # fmt: skip
            chosen = parse_method(method) | {k: v for k, v in flags.items() if v is not None}
            experiment = Experiment.of(
                task, chosen, environment, iterations=iterations, learning_rate=learning_rate,
                momentum=momentum, weight_decay=weight_decay, evaluate_every=evaluate_every,
                seed=seed,
            )  # fmt: skip
        torch.set_num_threads(threads)
        found, path = _go(experiment, out, resume, data_dir, device, memory, as_json)
    if as_json:
        typer.echo(json.dumps({"run": str(path), **asdict(found)}))
    else:
        typer.echo(f"{experiment.label}: {summary(found)}")
        typer.echo(f"kept in {path}; see it with: fedtern report {path}")


def compare(
    methods: Annotated[list[str], typer.Argument(help="Methods, like stc fedavg:local_steps=25.")],
    task: Annotated[str, typer.Option(help="What to learn.")] = "logistic-digits",
    clients: o.Clients = 100,
    participation: o.Participation = 0.1,
    classes_per_client: o.ClassesPerClient = 10,
    batch_size: o.BatchSize = 20,
    gamma: o.Gamma = 1.0,
    alpha: o.Alpha = 0.1,
    kind: o.SplitKind = "classes",
    concentration: o.Concentration = 0.5,
    public: o.Public = 0.0,
    iterations: o.Iterations = None,
    learning_rate: o.LearningRate = None,
    momentum: o.Momentum = None,
    weight_decay: o.WeightDecay = None,
    evaluate_every: o.EvaluateEvery = None,
    p_up: o.Rate = None,
    p_down: o.Rate = None,
    local_steps: o.LocalSteps = None,
    scope: o.Scope = None,
    delta: o.Delta = None,
    weighted: o.Weighted = None,
    seed: o.Seed = 0,
    data_dir: o.DataDir = None,
    out: o.Out = Path("runs"),
    html: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("report.html"),
    device: o.Device = "cpu",
    memory: o.Memory = None,
    threads: o.Threads = 1,
    as_json: o.AsJson = False,
) -> None:
    """Train the same federation with several methods; runs that are finished are not repeated.

    Parameters such as --p-up go to every method that has them; method:parameter=value to one.
    """
    flags = {
        "p_up": p_up,
        "p_down": p_down,
        "local_steps": local_steps,
        "scope": scope,
        "delta": delta,
        "weighted": weighted,
    }
    with o.one_sentence():
        environment = Environment(
            clients, participation, classes_per_client, batch_size, gamma, alpha, kind,
            concentration, public,
        )  # fmt: skip
        experiments = [
            Experiment.of(
                task, _with_flags(parse_method(text), flags), environment, iterations=iterations,
                learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay,
                evaluate_every=evaluate_every, seed=seed,
            )
            for text in methods
        ]  # fmt: skip
        torch.set_num_threads(threads)
        results = [(e, *_go(e, out, True, data_dir, device, memory, as_json)) for e in experiments]
        written = _write_report([path for _, _, path in results], html)
    if as_json:
        rows = [{"method": e.label, "run": str(p), **asdict(f)} for e, f, p in results]
        typer.echo(json.dumps({"runs": rows, "report": written and str(written)}))
        return
    _print(results)
    if written is not None:
        typer.echo(f"report: {written.resolve()}")


def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one page with the tables and plots of one or many runs."""
    with o.one_sentence():
        from fedtern.report import write_report

        written = write_report(runs, out)
    typer.echo(f"report: {written.resolve()}")


def _with_flags(method: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """A method with those flags that it has a parameter for and does not set itself."""
    known = complete({"name": method["name"]})
    return {**{k: v for k, v in flags.items() if v is not None and k in known}, **method}


def _go(
    experiment: Experiment,
    out: Path,
    resume: bool,
    data_dir: Path | None,
    device: str,
    memory: float | None,
    quiet: bool,
) -> tuple[Round, Path]:
    """Run an experiment to its end and show how far it is."""
    this = open_run(experiment, out, command=shlex.join(["fedtern", *sys.argv[1:]]))
    if this.finished:
        return this.rounds()[-1], this.path
    if this.checkpoint.exists() and not resume:
        raise ValueError(f"{this.path} has been started before: add --resume to go on")
    memory_bytes = None if memory is None else int(memory * (1 << 30))
    with (
        _interruptible() as interrupts,
        Watch(experiment.label, experiment.iterations, quiet) as watch,
    ):
        for found in this.go(
            data_dir,
            device=device,
            memory_bytes=memory_bytes,
            checkpoint_seconds=float(os.environ.get("FEDTERN_CHECKPOINT_SECONDS", 30)),
            stopped=lambda: len(interrupts) > 0,
            progress=watch.moved,
        ):
            watch.evaluated(found)
    if not this.finished:
        typer.echo(f"stopped; go on with the same command and --resume ({this.path})", err=True)
        raise typer.Exit(130)
    return this.rounds()[-1], this.path


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Let a first Ctrl-C end the round, not the program; a second one does."""
    caught: list[int] = []

    def catch(number: int, _frame: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = signal.signal(signal.SIGINT, catch)
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)


def _write_report(paths: list[Path], out: Path) -> Path | None:
    """The report, where what it needs is installed."""
    from fedtern.errors import MissingExtraError
    from fedtern.report import write_report

    try:
        return write_report(paths, out)
    except MissingExtraError as error:
        typer.echo(f"no report: {error}", err=True)
        return None


def _print(results: list[tuple[Experiment, Round, Path]]) -> None:
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
            f"1/{found.dense_bytes / max(found.up_bytes_mean, 1):,.0f}",
            f"1/{found.dense_bytes / max(found.down_bytes_mean, 1):,.0f}",
            f"{sum(found.seconds.values()):.1f}",
        )
    Console(highlight=False).print(table)
