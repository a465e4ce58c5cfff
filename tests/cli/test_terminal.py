"""Help, completion and output on the terminal."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from fedtern.cli import app
from fedtern.cli.terminal import CurrentStderrHandler, spinner

pytest.importorskip("torch")

COLUMNS = 80


def commands(group=None, path=()):
    """Yield every command with its path, subcommands included."""
    group = group or typer.main.get_command(app)
    context = group.make_context("fedtern", [], resilient_parsing=True)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        yield (*path, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("command", [(), *commands()], ids=" ".join)
def test_help_fits_80_columns_and_cuts_no_summary(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    shown = CliRunner().invoke(app, [*command, "--help"])
    assert shown.exit_code == 0
    assert [line for line in shown.output.splitlines() if len(line) > COLUMNS] == []
    listed = shown.output.partition("Commands:\n")[2]
    assert [line for line in listed.splitlines() if line.endswith("...")] == []


def complete(words: str, index: int) -> list[str]:
    """Return what the shell offers for the last of some words."""
    environment = os.environ | {
        "_FEDTERN_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(index),
    }
    code = "import sys; sys.argv[0] = 'fedtern'\nfrom fedtern.__main__ import main; main()"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return run.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fedtern re", ["reproduce", "report"]),
        ("fedtern run logistic-", ["logistic-digits", "logistic-mnist"]),
        ("fedtern compare st", ["stc", "stc_plus", "strom", "structured"]),
        ("fedtern run --class", ["--classes-per-client"]),
        ("fedtern serve --aggregate m", ["mean", "median"]),
    ],
)
def test_the_shell_completes_commands_tasks_methods_and_options(words, offered):
    assert complete(words, len(words.split()) - 1) == offered


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_log_lines_appear_above_the_spinner(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    shown = Console(file=screen, force_terminal=True, width=COLUMNS)
    log = logging.Logger("spinner")
    log.addHandler(CurrentStderrHandler())
    with spinner(shown, "training"):
        shown.print("round 1")  # draws the spinner below
        log.warning("a client left")
    log.warning("afterwards")
    before, _, after = screen.getvalue().partition("a client left")
    # The spinner is erased before the log line, and is drawn again on a line of its own.
    assert before.endswith("\x1b[2K")
    assert after.startswith("\n")
    assert after.endswith("afterwards\n")


def test_there_is_no_spinner_if_standard_error_is_a_file(monkeypatch):
    screen, file = Terminal(), io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    log = logging.Logger("spinner")
    log.addHandler(CurrentStderrHandler())
    with spinner(Console(file=screen, force_terminal=True), "training"):
        log.warning("a client left")
    assert (screen.getvalue(), file.getvalue()) == ("", "a client left\n")
