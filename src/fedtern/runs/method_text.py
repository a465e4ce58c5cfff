"""Methods as text on the command line, and as complete parameters in an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtern.core.methods import METHODS
from fedtern.core.names import look_up
from fedtern.core.numbers import parse_number

INTEGER_LIMIT = 1 << 63
"""Integers must be smaller than this: NumPy has no larger ones."""


def complete_method(method: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's name and all of its parameters, with defaults for those not given.

    Raises:
        ValueError: The name or a parameter is unknown, or a value is invalid.

    """
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
    given = {name: _parse_text(value) for name, value in method.items() if name != "name"}
    for name, value in given.items():
        if isinstance(value, int) and abs(value) >= INTEGER_LIMIT:
            raise ValueError(f"{method['name']}'s {name} must be below 2**63, got {value}")
    values = make.convert(given)
    make(**values)  # raises if a value is out of range
    return {"name": method["name"], **values}


def _parse_text(value: Any) -> Any:
    """Parse a number that was given as text, as in a TOML file."""
    return _parse_value(value) if isinstance(value, str) else value


def parse_method(text: str) -> dict[str, Any]:
    """Parse a method as typed on the command line: its name, a colon and its parameters.

    >>> parse_method("stc:p_up=1/100,scope=tensor")
    {'name': 'stc', 'p_up': 0.01, 'scope': 'tensor'}

    Raises:
        ValueError: A parameter has no value or occurs twice.

    """
    name, _, rest = text.partition(":")
    method: dict[str, Any] = {"name": name}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"expected parameter=value after the colon in {text!r}, got {part!r}")
        if key == "name":
            raise ValueError(f"the name of a method comes before the colon, got {text!r}")
        if (key := key.replace("-", "_")) in method:
            raise ValueError(f"{key} occurs twice in {text!r}; leave one out")
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
        return parse_number(text)
    except ValueError:
        return text
