"""A method as a person types it, and as an experiment keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtern.core.methods import METHODS
from fedtern.core.names import look_up
from fedtern.core.numbers import number

MOST = 1 << 63  # what no whole number may reach: arrays have none that are larger


def complete(method: Mapping[str, Any]) -> dict[str, Any]:
    """A method's name and all of its parameters, those not given at their defaults."""
    if "name" not in method:
        raise ValueError(f"a method needs a name, got {dict(method)}")
    make = look_up(method["name"], METHODS, "method")
    parameters = make.defaults
    for name in method:
        if name != "name" and name not in parameters:
            raise ValueError(
                f"method {method['name']!r} has no parameter {name!r}; it has"
                f" {', '.join(parameters) or 'none'}"
            )
    given = {
        n: _like(f"{method['name']}'s {n}", method.get(n, default), default)
        for n, default in parameters.items()
    }
    try:
        make(**given)  # or its values are out of range
    except TypeError as error:  # such as a word where there must be a number
        told = ", ".join(f"{n}={v}" for n, v in method.items() if n != "name")
        raise ValueError(
            f"method {method['name']!r} cannot be made with {told} ({error}): see `fedtern methods"
            f" {method['name']}`"
        ) from error
    return {"name": method["name"], **given}


def _like(name: str, value: Any, default: Any) -> Any:
    """A value of the type that a parameter's default has: 1 and 1.0 give the same digest."""
    if isinstance(default, float | None) and isinstance(value, str):
        value = _parse_value(value)
    if isinstance(value, int) and abs(value) >= MOST:
        raise ValueError(f"{name} must be below 2**63, got {value}")
    if default is None and isinstance(value, bool):
        raise ValueError(f"{name} must be a number or none, got {value!r}")
    if value is None or default is None:
        return value
    fits = isinstance(value, bool) == isinstance(default, bool) and (
        isinstance(value, type(default)) or (isinstance(default, float) and isinstance(value, int))
    )
    if not fits:
        raise ValueError(f"{name} must be of type {type(default).__name__}, got {value!r}")
    return type(default)(value)


def parse_method(text: str) -> dict[str, Any]:
    """A method as a person types it.

    >>> parse_method("stc:p_up=1/100,scope=tensor")
    {'name': 'stc', 'p_up': 0.01, 'scope': 'tensor'}
    """
    name, _, rest = text.partition(":")
    method: dict[str, Any] = {"name": name}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"expected parameter=value after the colon in {text!r}, got {part!r}")
        if key == "name":
            raise ValueError(f"a method's name comes before the colon, got {text!r}")
        if (key := key.replace("-", "_")) in method:
            raise ValueError(f"{key} is there twice in {text!r}: leave one out")
        method[key] = _parse_value(value)
    return method


def _parse_value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return number(text)
    except ValueError:
        return text
