"""Commands whose help reads as it was written.

Some versions of typer (0.20 among them, which Flower asks for) put a backslash before every default
wherever rich is installed, also where help is plain text.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """One command."""

    def get_help(self, ctx: Any) -> str:
        """The text of ``--help``."""
        return _plain(super().get_help(ctx))


class Group(TyperGroup):
    """A command with others under it."""

    def get_help(self, ctx: Any) -> str:
        """The text of ``--help``."""
        return _plain(super().get_help(ctx))


def _plain(text: str) -> str:
    return text.replace("\\[", "[")
