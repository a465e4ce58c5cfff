"""``fedtern watch``: the live page of runs, and ``--watch`` of commands that train."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from fedtern.cli.terminal import report_errors
from fedtern.core.errors import FedternError
from fedtern.report.live.server import LiveServer, is_loopback, new_token
from fedtern.report.live.watcher import Watcher

_TOKEN = "FEDTERN_WATCH_TOKEN"  # an environment variable


def watch(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Run directories, or directories of them.", show_default="runs"),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0 chooses a free one.")] = 8742,
    token: Annotated[
        str | None,
        typer.Option(
            help=f"Password of the page; better in ${_TOKEN}.",
            show_default="none on a loopback address, elsewhere a random one",
        ),
    ] = None,
    last: Annotated[int, typer.Option(min=1, help="Show this many runs, the latest ones.")] = 50,
    until_closed: Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)] = False,
) -> None:
    """Show runs and federations on a live page in the browser.

    The page shows running and finished runs, and receives every change while they train. The
    directories may be created later. Ctrl-C ends the command.
    """
    with report_errors():
        token = token or os.environ.get(_TOKEN) or (None if is_loopback(host) else new_token())
        watcher = Watcher(runs or [Path("runs")], most_runs=last)
        # Before the page is announced: a program that reads the address may send a signal at once.
        wait = _await_input_end() if until_closed else _await_signal()
        with LiveServer(watcher, host, port, token) as server:
            typer.echo(f"live page: {server.url}")
            sys.stdout.flush()
            wait()


def _await_input_end() -> Callable[[], object]:
    """Ignore Ctrl-C, and return a function that waits until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command that trains
    return sys.stdin.buffer.read


def _await_signal() -> Callable[[], object]:
    """Catch Ctrl-C and SIGTERM, and return a function that waits for one of them."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped.wait


@contextmanager
def live_page(paths: Sequence[Path], wanted: bool) -> Iterator[None]:
    """Serve the live page of some runs while the context is open, in a process of its own.

    The process does not share the interpreter with the training, and ends if this process dies.

    Args:
        paths: Run directories, or directories of them.
        wanted: Whether to do anything at all.

    Raises:
        FedternError: The page cannot be served.

    """
    if not wanted:
        yield
        return
    options = ["--port", "0", "--until-stdin-closes"]
    command = [sys.executable, "-m", "fedtern", "watch", *options, *map(str, paths)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode().strip()
        if not line:
            raise FedternError("Cannot serve the live page; see the error above")
        typer.echo(line, err=True)
        yield
    finally:
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        process.wait()
