"""Where tables are printed."""

from __future__ import annotations

import sys

from rich.console import Console


def console(width: int) -> Console:
    """Standard output; a pipe has no width of its own, and nothing should be cut off there."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else width)
