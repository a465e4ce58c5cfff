"""Recipes: functions that make named methods, with their versions and publications."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import re
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, Generic, ParamSpec

import numpy as np

from fedtern.core.methods.aggregate_text import AGGREGATE, normalize_aggregate, with_aggregate
from fedtern.core.methods.method import Method
from fedtern.core.methods.spec import Parameter

P = ParamSpec("P")

_NAME = re.compile("[a-z][a-z0-9_]*")


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

    Calling a recipe calls the function and records the parameters in the method's spec. Every
    recipe has one more parameter, ``aggregate``: how the server combines uploads, as text; see
    ``with_aggregate``.

    Attributes:
        name: the method's name on the wire, on disk and on the command line.
        version: changes whenever the same parameters would give other messages.
        publication: citation and map of equations.
        defaults: the default of each parameter.
        later: parameters that the method did not have at first. With their default they are not a
            part of the spec, so that messages and files from before stay valid.

    Raises:
        ValueError: the name or version is malformed, or a parameter has no default or no type.

    """

    def __init__(
        self,
        make: Callable[P, Method],
        name: str,
        version: int = 1,
        publication: Publication = UNPUBLISHED,
        later: Collection[str] = (),
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"A method's name must consist of lower-case letters, digits and _, got {name!r}."
            )
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise ValueError(
                f"The version of method {name!r} must be a whole number from 1 on, got {version!r}."
            )
        functools.update_wrapper(self, make)
        self.name = name
        self.version = version
        self.publication = publication
        self._make = make
        self._signature = inspect.signature(make)
        self._types = typing.get_type_hints(make)
        self.defaults = self._checked_defaults()
        self.later = frozenset(later)
        # A function may have a parameter of its own with this name.
        self._adds_aggregate = AGGREGATE not in self.defaults
        if self._adds_aggregate:
            self.defaults[AGGREGATE] = None
            self._types[AGGREGATE] = str | None
            self.later |= {AGGREGATE}

    def __call__(self, *args: P.args, **parameters: P.kwargs) -> Method:
        """Make the method with these parameters.

        Raises:
            TypeError: a parameter is unknown.
            ValueError: a parameter has a value of the wrong type or out of range.

        """
        given: dict[str, Any] = dict(parameters)
        added = {AGGREGATE: given.pop(AGGREGATE, None)} if self._adds_aggregate else {}
        bound = self._signature.bind(*args, **given)
        values = self.convert({**bound.arguments, **added})
        aggregate = values.pop(AGGREGATE, None) if self._adds_aggregate else None
        method = self._make(**values)  # type: ignore[call-arg]
        named = replace(method, name=self.name, version=self.version, parameters=values)
        return named if aggregate is None else with_aggregate(named, aggregate)

    def convert(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Complete parameters with the defaults and convert each to its annotated type.

        Parameters in ``later`` that have their default are left out.

        So 1, 1.0 and ``np.float32(1)`` give the same method.

        Raises:
            ValueError: a value does not have the annotated type, or is not finite.

        """
        converted = {
            name: _convert(f"{self.name}'s {name}", parameters.get(name, default), kinds)
            for (name, default), kinds in zip(
                self.defaults.items(), map(self._kinds, self.defaults), strict=True
            )
        }
        if self._adds_aggregate:
            text = converted[AGGREGATE]  # a text or None, as ``_convert`` has checked
            converted[AGGREGATE] = normalize_aggregate(None if text is None else str(text))
        return {
            name: value
            for name, value in converted.items()
            if name not in self.later or value != self.defaults[name]
        }

    def _kinds(self, name: str) -> tuple[Any, ...]:
        """Return the types and literals that a parameter accepts."""
        kinds: list[Any] = []
        waiting = [self._types[name]]
        while waiting:
            hint = waiting.pop()
            # A union or a literal; a plain type has no arguments.
            waiting += typing.get_args(hint)
            kinds += [] if typing.get_args(hint) else [hint]
        return tuple(kinds)

    def _checked_defaults(self) -> dict[str, Any]:
        defaults: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            plain = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if not plain or parameter.default is parameter.empty or name not in self._types:
                raise ValueError(
                    f"Parameter {name} of method {self.name!r} needs a default and a type"
                    " annotation, such as p: float = 0.01."
                )
            defaults[name] = _convert(f"{self.name}'s {name}", parameter.default, self._kinds(name))
        return defaults

    @property
    def about(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self._make) or "").partition("\n")[0]


def _convert(name: str, value: Any, kinds: tuple[Any, ...]) -> Parameter:
    """Convert a value to one of the annotated types, or raise a ``ValueError``."""
    if value is None and NoneType in kinds:
        return None
    if isinstance(value, bool | np.bool_):
        if bool in kinds:
            return bool(value)
    elif isinstance(value, str):
        if str in kinds or value in kinds:
            return value
    elif isinstance(value, numbers.Integral) and int in kinds:
        return int(value)
    elif isinstance(value, numbers.Real) and float in kinds and math.isfinite(value):
        return float(value)
    expected = " or ".join(
        "none" if kind is NoneType else kind.__name__ if isinstance(kind, type) else repr(kind)
        for kind in reversed(kinds)
    )
    is_choice = all(isinstance(kind, str) for kind in kinds)
    raise ValueError(f"{name} must be {'' if is_choice else 'of type '}{expected}, got {value!r}")


def named_method(
    name: str,
    version: int = 1,
    publication: Publication = UNPUBLISHED,
    later: Collection[str] = (),
) -> Callable[[Callable[P, Method]], Recipe[P]]:
    """Turn a function that makes a method into a ``Recipe``; use it as a decorator.

    Args:
        name: the method's name, which never changes, even if the function is renamed.
        version: raise it whenever the same parameters would give other messages.
        publication: citation and map of equations.
        later: parameters that were added after the first version; see ``Recipe``.

    """
    return lambda make: Recipe(make, name, version, publication, later)
