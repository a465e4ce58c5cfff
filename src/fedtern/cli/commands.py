"""Typer applications with plain-text help and commands that are imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

import typer
from typer import Typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType as Function

from fedtern.cli.terminal import report_errors
from fedtern.core.errors import MissingExtraError
from fedtern.core.extras import require


class Commands(Typer):
    """A group of commands with plain-text help; without arguments it prints its help.

    Args:
        completion: Whether to add the options that install completion for a shell.

    """

    def __init__(self, *, completion: bool = False) -> None:
        self._lazy: dict[str, _Target] = {}
        group = type("_LazyGroup", (_Group,), {"lazy": self._lazy})
        super().__init__(
            cls=group, no_args_is_help=True, add_completion=completion, rich_markup_mode=None
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """Return a decorator that adds a function as a command."""
        return super().command(name, cls=_Command, **options)

    def add_lazy(
        self, name: str, target: str, summary: str, *, needs: str = "fedtern", extra: str = "cli"
    ) -> None:
        """Add a command that is imported when it runs.

        Without the module that it needs, the command prints the line that installs it.

        Args:
            name: The command's name.
            target: ``module:attribute`` of a function or of another ``Commands``.
            summary: The first sentence of the command's help, for the list of commands.
            needs: The module that must be importable.
            extra: The extra of this package that installs it.

        """

        def not_installed(_context: typer.Context) -> None:
            with report_errors():
                require(needs, extra, f"fedtern {name}")

        if find_spec(needs) is None:
            summary = f"Not installed: needs the extra {extra!r}."
        any_arguments = {"ignore_unknown_options": True, "allow_extra_args": True}
        self.command(name, help=summary, context_settings=any_arguments)(not_installed)
        self._lazy[name] = _Target(target, needs, extra)


@dataclass(frozen=True)
class _Target:
    """A command that is imported on first use.

    Attributes:
        path: ``module:attribute`` of the command.
        needs: The module that must be importable.
        extra: The extra of this package that installs it.

    """

    path: str
    needs: str
    extra: str

    def load(self, name: str) -> Any:
        """Import the command.

        Raises:
            MissingExtraError: A module that it needs is not installed.

        """
        if find_spec(self.needs) is None:  # importing it would take seconds, for help alone
            require(self.needs, self.extra, f"fedtern {name}")
        module, _, attribute = self.path.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, Typer):
            single = Commands()
            single.command(name)(found)
            found = single
        return typer.main.get_command(found)


class _Command(TyperCommand):
    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))


class _Group(TyperGroup):
    lazy: ClassVar[dict[str, _Target]] = {}

    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Return the command to run; import it first if it was added with ``add_lazy``."""
        name, command, rest = super().resolve_command(ctx, args)
        if (target := self.lazy.get(name or "")) is not None:
            # Without the extra, the placeholder that add_lazy added names it.
            with suppress(MissingExtraError):
                command = target.load(str(name))
        return name, command, rest


def _plain(text: str) -> str:
    # Some versions of typer, among them 0.20, which Flower requires, escape the bracket before each
    # default for rich, even if help is plain text.
    return text.replace("\\[", "[")
