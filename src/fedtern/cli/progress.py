"""What a person sees while a federation trains."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedtern.runs import Evaluation

if TYPE_CHECKING:  # it needs torch
    from fedtern.transports.local.federation import Federation


def against_dense(found: Evaluation) -> tuple[str, str]:
    """What was sent up and down, as a share of what uncompressed training sends."""

    def share(nbytes: float) -> str:
        return f"1/{found.dense_bytes / nbytes:,.0f}" if nbytes else "nothing"

    return share(found.up_bytes_mean), share(found.down_bytes_mean)


def pace(found: Evaluation) -> str:
    """How fast rounds went, evaluations not counted."""
    seconds = sum(found.seconds.values()) - found.seconds["evaluate"]
    return f"{found.round / seconds:.1f} rounds/s" if seconds else "no time at all"


def summary(found: Evaluation) -> str:
    """Where things stand, in a line."""
    up, down = against_dense(found)
    return (
        f"accuracy {found.accuracy:.2%}  loss {found.loss:.4f}"
        f"  up {found.up_bytes_mean / 1e6:.3f} MB ({up})"
        f"  down {found.down_bytes_mean / 1e6:.3f} MB ({down})"
    )


def short(found: Evaluation) -> str:
    """Where things stand, in few enough letters for a bar."""
    up, down = against_dense(found)
    return (
        f"{found.accuracy:.1%}  up {found.up_bytes_mean / 1e6:.3g} MB {up}"
        f"  down {found.down_bytes_mean / 1e6:.3g} MB {down}"
    )


class Watch:
    """A live bar on a terminal, plain lines elsewhere (at most one every two seconds)."""

    def __init__(self, label: str, total: int, quiet: bool = False) -> None:
        self.label, self.total, self.quiet = label, total, quiet
        self._said = 0.0
        self._live = sys.stderr.isatty() and not quiet
        self._bar = Progress(
            TextColumn("{task.percentage:>3.0f}%"),
            BarColumn(bar_width=10),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
            disable=not self._live,
        )
        self._task = self._bar.add_task(label, total=total, state="")

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def moved(self, federation: Federation) -> None:
        """A round has ended."""
        self._bar.update(self._task, completed=min(federation.iteration, self.total))

    def evaluated(self, found: Evaluation) -> None:
        """An evaluation has ended."""
        self._bar.update(self._task, state=f"{self.label}  {short(found)}")
        last = found.iteration >= self.total
        if not self._live and not self.quiet and (last or time.monotonic() - self._said > 2):
            self._said = time.monotonic()
            typer.echo(
                f"{self.label}: {found.iteration:,}/{self.total:,}  {summary(found)}", err=True
            )
