"""Methods as text on the command line, and as complete parameters in an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtern.core.names import look_up
from fedtern.core.numbers import format_parameter, parse_number
from fedtern.runs.method_registry import known_methods

INTEGER_LIMIT = 1 << 63
"""Integers must be smaller than this: NumPy has no larger ones."""


def complete_method(
    method: Mapping[str, Any], participation: float | None = None
) -> dict[str, Any]:
    """Return a method's name and all of its parameters, with defaults for those not given.

    Args:
        method: name and parameters.
        participation: the share of the clients in a round, for methods with ``p_down="auto"``.

    >>> complete_method({"name": "stc_plus"}, 0.1)["participation"]
    0.1

    Raises:
        ValueError: The name or a parameter is unknown, or a value is invalid.

    """
    if "name" not in method:
        raise ValueError(f"a method needs a name, got {dict(method)}")
    make = look_up(method["name"], known_methods(), "method")
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
    if values.get("p_down") == "auto" and values.get("participation") is None:
        values = make.convert({**values, "participation": participation})
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


def format_method(method: Mapping[str, Any]) -> str:
    """Return a method as text that ``parse_method`` reads.

    Parameters with their default values are left out, except for the shares of values and the step
    size, which readers look for.

    >>> format_method({"name": "stc", "p_up": 0.01, "p_down": 0.0025, "scope": "model"})
    'stc:p_up=1/100,p_down=1/400'
    >>> format_method({"name": "stc_plus", "p_down": "auto", "participation": 0.1})
    'stc_plus'
    """
    name = str(method["name"])
    defaults = known_methods()[name].defaults
    ordered = {key: method[key] for key in defaults if key in method} | dict(method)
    written = {
        key: value
        for key, value in ordered.items()
        if key != "name" and _is_written(key, value, defaults)
    }
    inside = ",".join(f"{key}={format_parameter(value)}" for key, value in written.items())
    return f"{name}:{inside}" if inside else name


def _is_written(key: str, value: Any, defaults: Mapping[str, Any]) -> bool:
    """Return whether a parameter is written out although it may have its default value."""
    if key == "participation":
        return False  # an experiment takes that of its environment
    always = key in ("p_up", "p_down", "delta") and value not in (None, "auto")
    return always or value != defaults.get(key, ...)
