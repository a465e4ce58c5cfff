"""A method as JSON, for a peer that has to be told which one is used."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fedtern.core.methods import METHODS
from fedtern.core.methods.method import Method

_TYPE = "type"


def to_spec(method: Method) -> dict[str, Any]:
    """What ``read_method`` makes the same method of: the types and fields of all its parts.

    >>> from fedtern.core.methods import stc
    >>> read_method(to_spec(stc(p_up=1 / 100))) == stc(p_up=1 / 100)
    True
    """
    spelt: dict[str, Any] = _spell(method)
    return spelt


def read_method(spelt: Mapping[str, Any]) -> Method:
    """Undo ``spell``; a part that is not known here is a ``ValueError``."""
    try:
        method = _read(spelt)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"the method cannot be made here: {error}") from error
    if not isinstance(method, Method):
        raise ValueError(f"expected a method, got {type(method).__name__}")
    return method


def _spell(part: Any) -> Any:
    if is_dataclass(part) and not isinstance(part, type):
        kind = type(part)
        values = {field.name: _spell(getattr(part, field.name)) for field in fields(part)}
        return {_TYPE: f"{kind.__module__}:{kind.__qualname__}", **values}
    if isinstance(part, tuple | list):
        return [_spell(item) for item in part]
    if part is None or isinstance(part, bool | int | float | str):
        return part
    raise ValueError(
        f"a method's parts must be dataclasses, numbers and strings to be told to a peer, got"
        f" {part!r}"
    )


def _read(spelt: Any) -> Any:
    if isinstance(spelt, Mapping):
        values = {name: _read(value) for name, value in spelt.items() if name != _TYPE}
        return _known(spelt[_TYPE])(**values)
    return tuple(map(_read, spelt)) if isinstance(spelt, list) else spelt


def _known(name: str) -> type[Any]:
    """A part's type; only from this package and from where registered methods come from."""
    module, _, kind = name.partition(":")
    trusted = {recipe.make.__module__ for recipe in METHODS.values()}
    if not module.startswith("fedtern.") and module not in trusted:
        raise ValueError(f"{module} has registered no method here (see register_method)")
    found = getattr(sys.modules.get(module), kind, None)
    if not isinstance(found, type) or not is_dataclass(found):
        raise ValueError(f"there is no {kind} in {module}")
    return found
