"""``fedtern advise``: recommend a method."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedtern.advice import (
    Advice,
    Estimate,
    Record,
    Situation,
    collect_records,
    load_records,
    merge_records,
)
from fedtern.advice import advise as recommend
from fedtern.cli import console, fraction_option, report_errors
from fedtern.data import MetricSpec
from fedtern.report import format_bytes, method_label
from fedtern.runs import RecordedRun, load_run
from fedtern_paper.lessons import GUIDANCE

_LONGEST = timedelta(days=365_000)


def advise(
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 100,
    participation: Annotated[
        float, fraction_option("Fraction of the clients in each round.")
    ] = 0.1,
    classes: Annotated[int, typer.Option(help="Classes per client.")] = 10,
    of_classes: Annotated[int, typer.Option(help="Classes in the dataset.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Examples per local iteration.")] = 20,
    parameters: Annotated[int, typer.Option(help="Parameters of the model.")] = 1_000_000,
    up: Annotated[float, typer.Option(help="Upload speed of a client in Mbit/s.")] = 1.0,
    down: Annotated[float, typer.Option(help="Download speed of a client in Mbit/s.")] = 10.0,
    latency: Annotated[
        float, typer.Option(help="Seconds per round in addition to transfer and training.")
    ] = 0.1,
    step_seconds: Annotated[float, typer.Option(help="Seconds per local iteration.")] = 0.0,
    within: Annotated[
        float, typer.Option(help="Target: this many points below the best recorded accuracy.")
    ] = 2.0,
    runs: Annotated[
        list[Path] | None, typer.Option(help="A run directory to consider as well; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recommend a method for a federation.

    Prints the reasons, and the estimated traffic and time of each recorded method.
    """
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
        bundled = load_records()
        task_iterations = {record.task: record.own_iterations for record in bundled}
        collected = collect_records(own, task_iterations)
        advice = recommend(situation, merge_records(bundled, collected), GUIDANCE)
    _report_ignored_runs(own, collected, advice)
    if as_json:
        typer.echo(json.dumps(_to_json(advice)))
    else:
        _show(advice)


def _report_ignored_runs(
    own: Sequence[RecordedRun], collected: Sequence[Record], advice: Advice
) -> None:
    """Print to standard error which of the runs in --runs had no part in the answer."""
    for run in own:
        metric = MetricSpec.of_run(run.config)
        if run.is_complete and metric != MetricSpec():
            why = f"its metric is {metric.name}, and advice is about accuracy"
            typer.echo(f"fedtern: {run.path} is ignored: {why}", err=True)
        if not run.is_complete:
            why = (
                "its metrics.jsonl ends early, though the run is finished"
                if run.config.get("finished")
                else "the run is not finished"
            )
            typer.echo(f"fedtern: {run.path} is ignored: {why}", err=True)
    used = advice.group.records if advice.group else ()
    if collected and not any(record in used for record in collected):
        where = f" ({advice.group.description})" if advice.group else ""
        typer.echo(
            f"fedtern: bundled runs matched better than --runs{where}. A comparison needs at least"
            " two methods in the same environment at the same learning rate, preferably STC and"
            " FedAvg.",
            err=True,
        )


def _to_json(advice: Advice) -> dict[str, Any]:
    rows = [
        {
            "method": dict(estimate.record.method),
            "momentum": estimate.record.momentum,
            "reaches_target": estimate.reached is not None,
            "best_accuracy": estimate.record.best,
            "rounds": estimate.rounds,
            "up_bytes": estimate.up,
            "down_bytes": estimate.down,
            # JSON has no infinity, which a very slow link leads to.
            "seconds": estimate.seconds if math.isfinite(estimate.seconds) else None,
        }
        for estimate in advice.estimates
    ]
    return {
        "method": advice.method_option,
        "momentum": advice.momentum,
        "reasons": list(advice.reasons),
        "recorded_in": advice.group.description if advice.group else None,
        "distance": advice.group.distance(advice.situation) if advice.group else None,
        "too_far": advice.too_far,
        "estimates": rows,
    }


def _show(advice: Advice) -> None:
    out = console(160)
    out.print(f"--method {advice.method_option} --momentum {advice.momentum:g}\n")
    for reason in advice.reasons:
        out.print(f"- {reason}")
    if advice.estimates and advice.group:
        distance = f"distance {advice.group.distance(advice.situation):.1f}, 0 is identical"
        if advice.too_far:
            distance += ", too far to decide by"
        out.print(
            f"\nCost per participating client until {100 * advice.estimates[0].target:.2f} %"
            f" (recorded in {advice.group.description}; {distance}):"
        )
        out.print(_table(advice))


def _table(advice: Advice) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("method", "momentum", "rounds", "up", "down", "time", ""):
        table.add_column(column, justify="left" if column in ("method", "") else "right")
    for estimate in advice.estimates:
        table.add_row(*_cells(estimate))
    return table


def _cells(estimate: Estimate) -> tuple[str, ...]:
    method = method_label(estimate.record.method)
    momentum = f"{estimate.record.momentum:g}"
    if estimate.reached is None:
        best = f"best accuracy {100 * estimate.record.best:.2f} %"
        return method, momentum, "–", "–", "–", "–", best
    # timedelta cannot hold arbitrarily long times.
    if estimate.seconds > _LONGEST.total_seconds():
        time = "over 1000 years"
    else:
        time = str(timedelta(seconds=round(estimate.seconds)))
    rounds = f"{estimate.rounds:,.0f}"
    up = format_bytes(estimate.up)
    down = format_bytes(estimate.down)
    return method, momentum, rounds, up, down, time, ""
