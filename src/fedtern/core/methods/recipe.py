"""A method as the catalogue has it: how to make it, and where it comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedtern.core.methods.method import Method


@dataclass(frozen=True)
class Publication:
    """Where a method was published, and which function is which of its equations."""

    cite: str  # like "Sattler et al., 2019"
    bibtex: str = ""
    equations: Mapping[str, str] = field(default_factory=dict)  # to the function's dotted name
    notes: tuple[str, ...] = ()  # where we deviate, and why


def bibtex(kind: str, key: str, **fields: str) -> str:
    """A citation as BibTeX has it."""
    lines = [f"  {name} = {{{value}}}" for name, value in fields.items()]
    return ",\n".join([f"@{kind}{{{key}", *lines]) + "\n}"


OWN = Publication("unpublished")


@dataclass(frozen=True)
class Recipe:
    """A function that makes a method, and the method's publication."""

    make: Callable[..., Method]
    publication: Publication = OWN

    def __call__(self, *args: Any, **parameters: Any) -> Method:
        """The method with these parameters."""
        return self.make(*args, **parameters)

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        return self.make.__name__

    @property
    def parameters(self) -> dict[str, Any]:
        """Each parameter's default."""
        return {n: p.default for n, p in inspect.signature(self.make).parameters.items()}

    @property
    def about(self) -> str:
        """What it does, in a line."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0]
