"""``fedtern advise``: which method to use."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedtern.advice import Advice, Estimate, Record, Situation, collect, is_finished, load, merge
from fedtern.advice import advise as ask
from fedtern.cli.errors import report_errors
from fedtern.cli.numbers import rate
from fedtern.cli.terminal import console
from fedtern.report.formatting import format_bytes, method_label
from fedtern.runs.recorded_run import Run, load_run


def advise(
    clients: Annotated[int, typer.Option(help="How many there are.")] = 100,
    participation: Annotated[
        float, typer.Option(parser=rate, help="Share that takes part in a round.")
    ] = 0.1,
    classes: Annotated[int, typer.Option(help="That each client holds.")] = 10,
    of_classes: Annotated[int, typer.Option(help="That there are.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Of each local iteration.")] = 20,
    parameters: Annotated[int, typer.Option(help="Of the model.")] = 1_000_000,
    up: Annotated[float, typer.Option(help="Mbit/s that a client can send.")] = 1.0,
    down: Annotated[float, typer.Option(help="Mbit/s that a client can receive.")] = 10.0,
    latency: Annotated[float, typer.Option(help="Seconds a round takes besides the rest.")] = 0.1,
    step_seconds: Annotated[float, typer.Option(help="That a local iteration takes.")] = 0.0,
    within: Annotated[float, typer.Option(help="Points below the best that are enough.")] = 2.0,
    runs: Annotated[
        list[Path] | None, typer.Option(help="Runs of your own to go by as well; repeat it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recommend a method for a federation, with what it would cost and why."""
    with report_errors():
        situation = Situation(
            clients=clients,
            participation=participation,
            classes=classes,
            of_classes=of_classes,
            batch_size=batch_size,
            parameters=parameters,
            up=1e6 * up,
            down=1e6 * down,
            latency=latency,
            step=step_seconds,
            within=within / 100,
        )
        own = [load_run(path) for path in runs or []]
        records = load()
        counted = collect(own, {record.task: record.own_iterations for record in records})
        advice = ask(situation, merge(records, counted))
    _say_what_did_not_count(own, counted, advice)
    if as_json:
        typer.echo(json.dumps(_plain(advice)))
    else:
        _show(advice)


def _say_what_did_not_count(own: list[Run], counted: list[Record], advice: Advice) -> None:
    """Nobody should believe that a run was gone by which was not."""
    for run in own:
        if not is_finished(run):
            cut = (
                "finished, but its metrics.jsonl ends early," if run.config.get("finished") else ""
            )
            typer.echo(
                f"fedtern: {run.path} is {cut or 'not finished'} and does not count", err=True
            )
    used = advice.scene.records if advice.scene else ()
    if counted and not any(record in used for record in counted):
        where = advice.scene.name if advice.scene else "none"
        typer.echo(
            f"fedtern: the answer is not from --runs: other runs are nearer or tell more ({where}),"
            " or there is nothing to compare yours with: it takes two methods in the same"
            " environment at the same learning rate, best STC and FedAvg",
            err=True,
        )


def _plain(advice: Advice) -> dict[str, Any]:
    rows = [
        {
            "method": dict(found.record.method),
            "momentum": found.record.momentum,
            "reaches_target": found.reached is not None,
            "best_accuracy": found.record.best,
            "rounds": found.rounds,
            "up_bytes": found.up,
            "down_bytes": found.down,
            # JSON has no infinity, which is how long a link without speed takes.
            "seconds": found.seconds if math.isfinite(found.seconds) else None,
        }
        for found in advice.estimates
    ]
    return {
        "method": advice.method_option,
        "momentum": advice.momentum,
        "reasons": list(advice.reasons),
        "recorded_in": advice.scene.name if advice.scene else None,
        "distance": advice.scene.distance(advice.situation) if advice.scene else None,
        "too_far": advice.far,
        "estimates": rows,
    }


def _show(advice: Advice) -> None:
    out = console(160)
    out.print(f"--method {advice.method_option} --momentum {advice.momentum:g}\n")
    for reason in advice.reasons:
        out.print(f"- {reason}")
    if advice.estimates and advice.scene:
        target = f"{100 * advice.estimates[0].target:.2f} %"
        apart = advice.scene.distance(advice.situation)
        out.print(
            f"\nTo {target}, for each of a round's clients (from {advice.scene.name};"
            f" {apart:.1f} from what was asked, where 0 is the same"
            f"{', which is too far to go by' * advice.far}):"
        )
        out.print(_table(advice))


def _table(advice: Advice) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("method", "momentum", "rounds", "up", "down", "time", ""):
        table.add_column(column, justify="left" if column in ("method", "") else "right")
    for found in advice.estimates:
        table.add_row(*_cells(found))
    return table


def _cells(found: Estimate) -> tuple[str, ...]:
    name = method_label(found.record.method), f"{found.record.momentum:g}"
    if found.reached is None:
        return (*name, "–", "–", "–", "–", f"at best {100 * found.record.best:.2f} %")
    # Longer than that, nobody counts the seconds, and timedelta cannot.
    long = found.seconds > timedelta(days=365_000).total_seconds()
    lasting = "ages" if long else str(timedelta(seconds=round(found.seconds)))
    return (
        *name,
        f"{found.rounds:,.0f}",
        format_bytes(found.up),
        format_bytes(found.down),
        lasting,
        "",
    )
