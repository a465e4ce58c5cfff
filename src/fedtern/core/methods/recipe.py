"""Recipes: functions that make named methods, with their versions and publications."""

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
    """The publication of a method.

    Attributes:
        cite: a short citation, such as "Sattler et al., 2019".
        bibtex: the citation in BibTeX format.
        equations: the dotted name of the function that implements each equation.
        notes: deviations from the publication, with reasons.

    """

    cite: str
    bibtex: str = ""
    equations: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


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
        """Convert a value to the type of its parameter, so that 1 and 1.0 give the same method."""
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
        parameters = self._signature.parameters
        return {name: parameter.default for name, parameter in parameters.items()}

    @property
    def about(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self._make) or "").partition("\n")[0]


def named_method(
    name: str, version: int = 1, publication: Publication = UNPUBLISHED
) -> Callable[[Callable[P, Method]], Recipe[P]]:
    """Turn a function that makes a method into a ``Recipe``; use it as a decorator.

    Args:
        name: the method's name, which stays the same for ever, even if the function is renamed.
        version: raise it whenever the same parameters would give other messages.
        publication: citation and map of equations.

    """
    return lambda make: Recipe(make, name, version, publication)
