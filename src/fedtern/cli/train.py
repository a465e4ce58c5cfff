"""``fedtern run`` and ``compare``."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fedtern.cli.options import (
    EXPERIMENT,
    ComparisonOptions,
    SimulationOptions,
    Task,
    TaskOption,
    Track,
    Watch,
    checkpoint_seconds,
    command_line,
    complete_method_name,
    load_tasks,
    with_options,
)
from fedtern.cli.progress import (
    RunProgress,
    against,
    qualities,
    speed,
    summary,
    training_seconds,
)
from fedtern.cli.signals import interruptible
from fedtern.cli.terminal import console, report_errors, report_fallback
from fedtern.cli.watch import live_page
from fedtern.core.errors import MissingExtraError
from fedtern.core.extras import require
from fedtern.core.names import look_up
from fedtern.report import format_bytes, write_report
from fedtern.report.page import check_target
from fedtern.runs import LOCAL_ENGINE, Evaluation, Experiment, open_run
from fedtern.runs.run_directory import run_path
from fedtern.runs.trackers import make_tracker, track_finished_run

if TYPE_CHECKING:  # needs torch, which the help of a command should not import
    from fedtern.transports.local.federation import Federation

MakeFederation = Callable[..., "Federation"]


class Result(NamedTuple):
    """A finished run.

    Attributes:
        experiment: Its experiment.
        evaluation: Its last evaluation.
        path: Its directory.

    """

    experiment: Experiment
    evaluation: Evaluation
    path: Path

    def to_json(self) -> dict[str, Any]:
        """Return directory and last evaluation for JSON."""
        return {"run": str(self.path), **self.evaluation.to_json()}


@with_options(SimulationOptions)
def run(
    context: typer.Context,
    options: SimulationOptions,
    task: Task = "logistic-digits",
    method: Annotated[
        str,
        typer.Option(
            help="Method, for example stc or stc:p_up=1/100; see `fedtern methods`.",
            autocompletion=complete_method_name,
        ),
    ] = "stc",
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the experiment, instead of options.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue a stopped run.")] = False,
    watch: Watch = False,
    track: Track = None,
) -> None:
    """Train a federation and save the run.

    The defaults are the base configuration of the paper: 100 clients, of which 10% take part in
    each round. A finished run is not repeated.
    """
    report_fallback()
    with report_errors():
        if config is None:
            experiment = options.experiment(task, method, strict=True)
        else:
            _check_no_options_with(config, context)
            load_tasks(options.imports)
            experiment = Experiment.from_toml(config)
        with live_page([_run_path(experiment, options)], watch):
            result = _train(experiment, options, resume=resume, track=track)
    if options.as_json:
        typer.echo(json.dumps(result.to_json(), allow_nan=False))
    else:
        evaluation = result.evaluation
        typer.echo(f"{experiment.label}: {summary(evaluation)}, {speed(evaluation)}")
        typer.echo(f"saved to {result.path}; view it with: fedtern report {result.path}")


@with_options(ComparisonOptions)
def compare(
    options: ComparisonOptions,
    methods: Annotated[
        list[str],
        typer.Argument(
            help="Methods, for example stc fedavg:local_steps=25.",
            autocompletion=complete_method_name,
        ),
    ],
    task: TaskOption = "logistic-digits",
    html: Annotated[Path, typer.Option(help="HTML report to write.")] = Path("report.html"),
    resume: Annotated[bool, typer.Option(help="Continue stopped runs.")] = True,
    watch: Watch = False,
    track: Track = None,
) -> None:
    """Train the same federation with several methods.

    Options such as --p-up apply to every method that has the parameter; method:parameter=value
    applies to one method. Finished runs are not repeated.
    """
    report_fallback()
    with report_errors():
        # Before training: an unusable path should not be found after hours.
        check_target(html)
        experiments = options.experiments(task, methods)
        with live_page([_run_path(each, options) for each in experiments], watch):
            results = [
                _train(experiment, options, resume=resume, track=track)
                for experiment in experiments
            ]
    if not options.as_json:
        _print_table(results)
    written = None
    try:
        with report_errors():
            written = _write_report([result.path for result in results], html)
    finally:
        # Also if the report failed: the results of the training are not lost with it.
        if options.as_json:
            rows = [
                {"method": result.experiment.label, "seed": result.experiment.seed}
                | result.to_json()
                for result in results
            ]
            found = {"runs": rows, "report": written and str(written)}
            typer.echo(json.dumps(found, allow_nan=False))
    if written is not None and not options.as_json:
        typer.echo(f"report: {written.resolve()}")


def _run_path(experiment: Experiment, options: SimulationOptions) -> Path:
    return run_path(experiment, options.out, options.engine)


def _check_no_options_with(config: Path, context: typer.Context) -> None:
    """Raise if the command line has options that the file would override."""
    given = [name for name in ("task", "method", *EXPERIMENT) if _is_typed(name, context)]
    if given:
        names = ", ".join(n if n == "task" else f"--{n.replace('_', '-')}" for n in given)
        raise ValueError(
            f"--config cannot be combined with {names}: set them in {config}, or omit them"
        )


def _is_typed(name: str, context: typer.Context) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _train(
    experiment: Experiment,
    options: SimulationOptions,
    *,
    resume: bool,
    track: list[str] | None = None,
) -> Result:
    """Train an experiment to its end and show the progress.

    Raises:
        ValueError: An option cannot be used, or the run was started before and ``resume`` is False.
        typer.Exit: Ctrl-C stopped the run; the exit code is 130.

    """
    import torch

    from fedtern.training.devices import check_device
    from fedtern.transports.local.launch import check_task, train_run

    choose = look_up(options.engine, _ENGINES, "engine")
    make_federation = choose(experiment, options.data_dir, options.device)
    check_device(options.device)
    opened = open_run(experiment, options.out, command=command_line(), engine=options.engine)
    trackers = [make_tracker(text, opened.path.name) for text in track or ()]
    if opened.is_finished():
        check_task(opened, options.data_dir)
        track_finished_run(opened, trackers)
        result = Result(experiment, opened.final_evaluation(), opened.path)
        if not options.as_json:
            typer.echo(f"{experiment.label}: already finished, in {opened.path}", err=True)
        return result
    if opened.checkpoint_path.exists() and not resume:
        raise ValueError(f"{opened.path} holds an unfinished run: add --resume to continue it")
    torch.set_num_threads(options.threads)
    with (
        interruptible() as signals,
        RunProgress(experiment.label, experiment.iterations, quiet=options.as_json) as progress,
    ):
        for evaluation in train_run(
            opened,
            options.data_dir,
            device=options.device,
            memory_bytes=options.memory_bytes,
            workers=0 if options.threads > 1 else options.workers,
            checkpoint_seconds=checkpoint_seconds(),
            stopped=lambda: len(signals) > 0,
            progress=progress.round_finished,
            callbacks=trackers,
            make_federation=make_federation,
        ):
            progress.evaluated(evaluation)
    if not opened.is_finished():
        verb = "continue" if options.engine == LOCAL_ENGINE else "start again"
        typer.echo(f"stopped; {verb} with the same command and --resume ({opened.path})", err=True)
        raise typer.Exit(130)
    _report_privacy(experiment, opened.final_evaluation())
    return Result(experiment, opened.final_evaluation(), opened.path)


def _report_privacy(experiment: Experiment, last: Evaluation) -> None:
    """Print the privacy loss of a run, and whether its budget ended it."""
    spent = last.privacy
    if not spent or experiment.privacy is None:
        return
    if "budget" in spent and last.iteration < experiment.iterations:
        typer.echo(
            f"{experiment.label}: stopped after {last.round} rounds, because another round could"
            f" exceed the privacy budget: epsilon {spent['epsilon']:.3g} of {spent['budget']:g} is"
            " spent",
            err=True,
        )
    typer.echo(f"{experiment.label}: {experiment.privacy.guarantee(spent)}", err=True)


def _local_engine(_experiment: Experiment, _data_dir: Path | None, _device: str) -> MakeFederation:
    from fedtern.transports.local.federation import Federation

    return Federation


def _flower_engine(experiment: Experiment, data_dir: Path | None, device: str) -> MakeFederation:
    require("flwr", "flower", "--engine flower")
    require("ray", "flower", "--engine flower")
    from fedtern.transports.flower.engine import FlowerFederation

    if experiment.privacy is not None and experiment.privacy.model == "local":
        raise ValueError("--engine flower does not support --dp-model local: omit --engine")
    if device != "cpu":
        raise ValueError(f"--engine flower trains on the CPU, not on {device!r}: omit --device")
    # Absolute: the processes of the simulation have another working directory.
    directory = None if data_dir is None else str(data_dir.resolve())
    return partial(FlowerFederation, experiment, directory)


_ENGINES: dict[str, Callable[[Experiment, Path | None, str], MakeFederation]] = {
    LOCAL_ENGINE: _local_engine,
    "flower": _flower_engine,
}


def _write_report(paths: list[Path], out: Path) -> Path | None:
    """Write the report; print the reason and return None if Jinja2 is not installed."""
    try:
        return write_report(paths, out)
    except MissingExtraError as error:
        typer.echo(f"report skipped: {error}", err=True)
        return None


def _print_table(results: list[Result]) -> None:
    from rich.table import Table

    metric = next((evaluation.primary[0] for _, evaluation, _ in results), "accuracy")
    columns = ("method", metric, "up", "down", "server", "up vs dense", "down vs dense", "seconds")
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    by_label: dict[str, list[Evaluation]] = {}
    for experiment, evaluation, _ in results:
        by_label.setdefault(experiment.label, []).append(evaluation)
    for label, seeds in by_label.items():
        up, down, dense, server, seconds = (
            fmean(value(each) for each in seeds)
            for value in (
                lambda each: each.up_bytes_mean,
                lambda each: each.down_bytes_mean,
                lambda each: each.dense_bytes,
                lambda each: each.up_bytes + each.down_bytes,
                training_seconds,
            )
        )
        table.add_row(
            label,
            qualities(seeds),
            format_bytes(up),
            format_bytes(down),
            format_bytes(server),
            against(dense, up),
            against(dense, down),
            f"{seconds:.1f}",
        )
    console(120).print(table)
    note = "up and down: per participating client, summed over rounds; server: all clients"
    most = max(map(len, by_label.values()))
    typer.echo(note if most == 1 else f"{note}; means of {most} seeds ± standard deviation")
