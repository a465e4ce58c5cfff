"""A named method: how to make it, its version, and where it was published."""

from __future__ import annotations

import functools
import inspect
import operator
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Generic, ParamSpec

from fedtern.core.methods.method import Method
from fedtern.core.methods.spec import Parameter

P = ParamSpec("P")


@dataclass(frozen=True)
class Publication:
    """Where a method was published, and which function implements which of its equations."""

    cite: str  # like "Sattler et al., 2019"
    bibtex: str = ""
    equations: Mapping[str, str] = field(default_factory=dict)  # to the function's dotted name
    notes: tuple[str, ...] = ()  # deviations from the publication, with reasons


def bibtex(kind: str, key: str, **fields: str) -> str:
    """Return a citation in BibTeX format."""
    lines = [f"  {name} = {{{value}}}" for name, value in fields.items()]
    return ",\n".join([f"@{kind}{{{key}", *lines]) + "\n}"


UNPUBLISHED = Publication("unpublished")


class Recipe(Generic[P]):
    """A function that makes a method, with the name and version that peers know it by.

    Calling a recipe calls the function and records the parameters in the method's spec.

    Attributes:
        name: the method's name on the wire, on disk and on the command line.
        version: changes whenever the same parameters would give other messages.
        publication: citation and map of equations.
        defaults: the default of each parameter.

    """

    def __init__(
        self,
        make: Callable[P, Method],
        name: str,
        version: int = 1,
        publication: Publication = UNPUBLISHED,
    ) -> None:
        functools.update_wrapper(self, make)
        self.name = name
        self.version = version
        self.publication = publication
        self._make = make
        self._signature = inspect.signature(make)
        self._types = typing.get_type_hints(make)

    def __call__(self, *args: P.args, **parameters: P.kwargs) -> Method:
        """Make the method with these parameters."""
        method = self._make(*args, **parameters)
        bound = self._signature.bind(*args, **parameters)
        bound.apply_defaults()
        plain = {name: self._plain(name, value) for name, value in bound.arguments.items()}
        return replace(method, name=self.name, version=self.version, parameters=plain)

    def _plain(self, name: str, value: Any) -> Parameter:
        """Convert a value to the type of its parameter: 1 and 1.0 are the same share."""
        hint = self._types.get(name, Any)
        kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not NoneType]
        if value is None or isinstance(value, str | bool):
            plain: Parameter = value
        elif float in kinds and int not in kinds:
            plain = float(value)
        elif bool in kinds:
            plain = bool(value)
        elif int in kinds:
            plain = operator.index(value)
        else:
            raise ValueError(
                f"Parameter {name} of method {self.name!r} must be a number, a string, a bool or"
                f" None, with a type annotation, got {value!r}."
            )
        return plain

    @property
    def defaults(self) -> dict[str, Any]:
        """The default of each parameter."""
        return {n: p.default for n, p in self._signature.parameters.items()}

    @property
    def about(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self._make) or "").partition("\n")[0]


def named_method(
    name: str, version: int = 1, publication: Publication = UNPUBLISHED
) -> Callable[[Callable[P, Method]], Recipe[P]]:
    """Give the method that a function makes its name and version; use it as a decorator.

    Args:
        name: stays the same for ever, even if the function is renamed.
        version: raise it whenever the same parameters would give other messages.
        publication: citation and map of equations.

    """
    return lambda make: Recipe(make, name, version, publication)
