"""Commands whose help reads as it was written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer import Typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType as Function


class Commands(Typer):
    """A place for commands, which are all alike: in plain text, and with help if left alone."""

    def __init__(self) -> None:
        super().__init__(
            cls=_Group, no_args_is_help=True, add_completion=False, rich_markup_mode=None
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """A decorator that adds a function as a command."""
        return super().command(name, cls=_Command, **options)


class _Command(TyperCommand):
    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))


class _Group(TyperGroup):
    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))


def _plain(text: str) -> str:
    # Some versions of typer (0.20 among them, which Flower asks for) put a backslash before every
    # default wherever rich is installed, also where help is plain text.
    return text.replace("\\[", "[")
