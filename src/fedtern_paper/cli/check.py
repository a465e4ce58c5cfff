"""``fedtern reproduce --check``: the paper's claims and what finished runs say of them."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from fedtern.core.errors import StoreError
from fedtern.data.hyperparameters import task_defaults
from fedtern_paper import Results
from fedtern_paper.cli.artefacts import print_rows
from fedtern_paper.judgements import read_judgements
from fedtern_paper.outputs import CLAIMS_CSV, write_claims
from fedtern_paper.scoreboard import check, judge


def show_claims(found: Results, directory: Path, task: str | None, as_json: bool) -> None:
    """Print and write every claim with its verdict, and every comparison with its numbers.

    With a task, what was written of others stays: they may have been run elsewhere.
    """

    def say(error: StoreError) -> None:
        typer.echo(f"fedtern: left out: {error}", err=True)

    recorded = [run for run in found.recorded(say) if task in (None, run[0].task)]
    if not recorded:
        # Nothing at all is no reason to replace what an earlier command may have written.
        if task is not None:
            task_defaults(task)  # raises if the task is unknown
        which = "" if task is None else f" of {task}"
        raise ValueError(
            f"there are no finished runs{which} under {found.out}: make some, such as with"
            " `fedtern reproduce fig6`, or say where they are with --out"
        )
    before = [] if task is None else read_judgements(directory / CLAIMS_CSV)
    others = [each for each in before if each.task != task]
    summary, details = check([*others, *judge(recorded)])
    tasks = [] if task is None else sorted({task, *(each.task for each in others)})
    commands = [f"fedtern reproduce --check{which}" for which in _each(tasks)]
    lead = "\n".join(["```sh", *commands, "```"])
    files = list(map(str, write_claims(summary, details, directory, lead=lead)))
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


def _each(tasks: list[str]) -> list[str]:
    return [f" --task {task}" for task in tasks] or [""]
