"""``fedtern reproduce --check``: test the paper's claims on finished runs."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from fedtern import StoreError
from fedtern.data import task_defaults
from fedtern_paper.cli.artefacts import print_rows
from fedtern_paper.judgements import judge, read_judgements, summarise
from fedtern_paper.outputs import CLAIMS_CSV, write_claims
from fedtern_paper.results import Results


def check_claims(results: Results, directory: Path, task: str | None, as_json: bool) -> None:
    """Print and write every claim with its verdict, and every comparison with its numbers.

    Args:
        results: The finished runs.
        directory: Where to write claims.md and claims.csv.
        task: Check only this task, and keep what claims.csv says about other tasks, which may
            have been run elsewhere. None to check all tasks.
        as_json: Whether to print one JSON object.

    Raises:
        ValueError: There are no finished runs.

    """

    def report_damage(error: StoreError) -> None:
        typer.echo(f"fedtern: skipped: {error}", err=True)

    finished = [
        (cell, evaluations)
        for cell, evaluations in results.finished_runs(report_damage)
        if task in (None, cell.task)
    ]
    if not finished:
        if task is not None:
            task_defaults(task)  # raises if the task is unknown
        which = "" if task is None else f" of {task}"
        raise ValueError(
            f"no finished runs{which} under {results.out}; make some, for example with"
            " `fedtern reproduce fig6`, or set --out to their directory"
        )
    earlier = [] if task is None else read_judgements(directory / CLAIMS_CSV)
    others = [judgement for judgement in earlier if judgement.task != task]
    summary, details = summarise([*others, *judge(finished)])
    commands = ["fedtern reproduce --check"]
    if task is not None:
        tasks = sorted({task, *(judgement.task for judgement in others)})
        commands = [f"fedtern reproduce --check --task {each}" for each in tasks]
    lead = "\n".join(["```sh", *commands, "```"])
    files = [str(path) for path in write_claims(summary, details, directory, lead=lead)]
    if as_json:
        rows = {"claims": summary.values, "comparisons": details.values}
        typer.echo(json.dumps({**rows, "files": files}))
        return
    print_rows(details.shown)
    typer.echo("")
    print_rows(summary.shown)
    for note in summary.notes:
        typer.echo(f"- {note}")
    typer.echo(f"written: {', '.join(files)}")
