"""``fedtern advise``: recommend a method."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.table import Table

from fedtern.advice import (
    OBJECTIVES,
    Advice,
    Estimate,
    Minimise,
    Record,
    Situation,
    collect_records,
    format_duration,
    load_records,
    merge_records,
)
from fedtern.advice import advise as recommend
from fedtern.cli import console, fraction_option, report_errors
from fedtern.data import MetricSpec
from fedtern.report import format_bytes, format_number
from fedtern.runs import DEFINITIONS, RecordedRun, load_run
from fedtern_paper.lessons import GUIDANCE


def advise(
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 100,
    participation: Annotated[
        float, fraction_option("Fraction of the clients in each round.")
    ] = 0.1,
    classes: Annotated[int, typer.Option(help="Classes per client.")] = 10,
    of_classes: Annotated[int, typer.Option(help="Classes in the dataset.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Examples per local iteration.")] = 20,
    parameters: Annotated[int, typer.Option(help="Parameters of the model.")] = 1_000_000,
    minimise: Annotated[
        str,
        typer.Option(
            metavar="|".join(OBJECTIVES),
            help="Objective: bytes in both directions, uploaded bytes, time, or the price of the"
            " bytes.",
        ),
    ] = "bytes",
    price_up: Annotated[
        float, typer.Option(help="Price per GB that a client uploads, in any currency.")
    ] = 0.0,
    price_down: Annotated[float, typer.Option(help="Price per GB that a client downloads.")] = 0.0,
    price_server: Annotated[float, typer.Option(help="Price per GB that the server sends.")] = 0.0,
    up: Annotated[float, typer.Option(help="Upload speed of a client in Mbit/s.")] = 1.0,
    down: Annotated[float, typer.Option(help="Download speed of a client in Mbit/s.")] = 10.0,
    latency: Annotated[
        float, typer.Option(help="Seconds per round in addition to transfer and training.")
    ] = 0.1,
    gflops: Annotated[
        float,
        typer.Option(
            help="Speed of a client in training, in 10^9 operations per second; 1 is of the order"
            " of a single-board computer."
        ),
    ] = 1.0,
    step_seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds per local iteration.",
            show_default="6 x parameters x batch size / (gflops x 10^9)",
        ),
    ] = None,
    within: Annotated[
        float, typer.Option(help="Target: this many points below the best recorded accuracy.")
    ] = 2.0,
    runs: Annotated[
        list[Path] | None, typer.Option(help="A run directory to consider as well; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recommend a method for a federation.

    Prints the reasons, and the estimated traffic and time of each method in the nearest recorded
    runs. The first method of the table is the recommended one.
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
            gflops=gflops,
            step=step_seconds,
            within=within / 100,
            minimise=cast(Minimise, minimise),  # it checks the value
            price_up=price_up,
            price_down=price_down,
            price_server=price_server,
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
    used = advice.cell.records if advice.cell else ()
    if collected and not any(record in used for record in collected):
        where = f" ({advice.cell.description})" if advice.cell else ""
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
            "up_bytes_mean": round(estimate.up_bytes_mean),
            "down_bytes_mean": round(estimate.down_bytes_mean),
            "up_bytes": round(estimate.up_bytes),
            "down_bytes": round(estimate.down_bytes),
            # JSON has no infinity, which a very slow link leads to.
            "seconds": estimate.seconds if math.isfinite(estimate.seconds) else None,
            "cost": estimate.cost if advice.situation.has_prices else None,
        }
        for estimate in advice.estimates
    ]
    return {
        "method": advice.method_option,
        "momentum": advice.momentum,
        "minimise": advice.situation.minimise,
        "decided_by": "runs" if rows else "lessons",
        "reasons": list(advice.reasons),
        "recorded_in": advice.cell.description if advice.cell else None,
        "differences": [
            {"name": d.name, "recorded": d.recorded, "yours": d.yours, "too_large": d.too_large}
            for d in advice.differences
        ],
        "target": advice.estimates[0].target if rows else None,
        "estimates": rows,
    }


def _show(advice: Advice) -> None:
    out = console(160)
    out.print(f"--method {advice.method_option} --momentum {advice.momentum:g}\n")
    for reason in advice.reasons:
        out.print(f"- {reason}")
    if advice.differences:
        out.print("\nDifferences between the recorded runs and your federation:")
        for difference in advice.differences:
            out.print(f"- {difference}")
    if advice.estimates:
        target = f"{100 * advice.estimates[0].target:.2f} %"
        smallest = OBJECTIVES[advice.situation.minimise].smallest
        out.print(f"\nEstimates until {target}, {smallest} first:")
        out.print(_table(advice))
        out.print(f"\n{DEFINITIONS}")


def _table(advice: Advice) -> Table:
    table = Table(box=None, pad_edge=False)
    columns = ["momentum", "rounds", "client up", "client down"]
    columns += ["server up", "server down", "time"]
    if advice.situation.has_prices:
        columns.append("cost")
    table.add_column("method")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("")
    for estimate in advice.estimates:
        table.add_row(*_cells(estimate, len(columns)))
    return table


def _cells(estimate: Estimate, columns: int) -> list[str]:
    """Return the texts of a row: method, columns and a note."""
    first = [estimate.label, f"{estimate.record.momentum:g}"]
    if estimate.reached is None:
        best = f"best accuracy {100 * estimate.record.best:.2f} %"
        return [*first, *["–"] * (columns - 1), best]
    amounts = [
        f"{estimate.rounds:,.0f}",
        format_bytes(estimate.up_bytes_mean),
        format_bytes(estimate.down_bytes_mean),
        format_bytes(estimate.up_bytes),
        format_bytes(estimate.down_bytes),
        format_duration(estimate.seconds),
        format_number(estimate.cost),
    ]
    return [*first, *amounts[: columns - 1], ""]
