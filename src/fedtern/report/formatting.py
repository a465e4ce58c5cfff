"""Format names and numbers for people to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedtern.core.methods import stc_plus
from fedtern.core.numbers import format_reciprocal
from fedtern.runs.method_registry import known_methods

# A label leaves out parameters that have these values.
_DEFAULTS = {"local_steps": 1, "scope": "model", "weighted": False}


def method_label(method: Mapping[str, Any]) -> str:
    """Return a method's name with the parameters that distinguish it from others.

    >>> method_label({"name": "stc", "p_up": 0.0025, "p_down": 0.0025, "local_steps": 1})
    'STC p=1/400'
    >>> method_label({"name": "stc_plus", "p_up": 0.01, "p_down": "auto", "participation": 0.1})
    'STC+ p=1/100'
    >>> method_label({"name": "fedavg", "local_steps": 400, "weighted": True})
    'FedAvg n=400, weighted'
    >>> method_label({"name": "dgc", "p": 0.01})
    'dgc(p=1/100)'
    """
    name = str(method.get("name"))
    if name not in _TITLES:
        return _call_label(name, method)
    title, included = _TITLES[name](method)
    rest = {
        key: value
        for key, value in method.items()
        if key not in included and key != "name" and _DEFAULTS.get(key) != value
    }
    return ", ".join([title, *(_parameter(key, value) for key, value in rest.items())])


def _call_label(name: str, method: Mapping[str, Any]) -> str:
    """Return a method's name with its parameters in parentheses, without the default ones."""
    known = known_methods()
    defaults = known[name].defaults if name in known else {}
    changed = {
        key: value
        for key, value in method.items()
        if key != "name" and defaults.get(key, ...) != value
    }
    parameters = ", ".join(f"{key}={format_fraction(value)}" for key, value in changed.items())
    return f"{name}({parameters})" if parameters else name


def _parameter(key: str, value: Any) -> str:
    if key == "local_steps":
        return f"n={format_value(value)}"
    if key == "scope" and value == "tensor":
        return "by tensor"
    if key == "weighted" and value is True:
        return "weighted"
    return f"{key}={format_value(value)}"


# Each returns a title and the parameters that the title includes.


def _stc(method: Mapping[str, Any]) -> tuple[str, set[str]]:
    up = method.get("p_up")
    down = method.get("p_down")
    rates = format_fraction(up) if up == down else _up_and_down(up, down)
    return f"STC p={rates}", {"p_up", "p_down"}


def _stc_plus(method: Mapping[str, Any]) -> tuple[str, set[str]]:
    defaults = stc_plus.defaults
    usual = {key for key, value in method.items() if value == defaults.get(key)}
    up = method.get("p_up")
    title = "STC+" if up == "auto" else f"STC+ p={format_fraction(up)}"
    return title, usual | {"p_up", "participation"}


def _topk(method: Mapping[str, Any]) -> tuple[str, set[str]]:
    up = method.get("p_up")
    down = method.get("p_down")
    # By default only uploads are sparse, so the label says when broadcasts are, too.
    if down is None:
        rates = format_fraction(up)
    elif up == down:
        rates = f"{format_fraction(up)} both ways"
    else:
        rates = _up_and_down(up, down)
    return f"top-k p={rates}", {"p_up", "p_down"}


def _up_and_down(up: Any, down: Any) -> str:
    return f"{format_fraction(up)} up, {format_fraction(down)} down"


def _fedavg(method: Mapping[str, Any]) -> tuple[str, set[str]]:
    return f"FedAvg n={format_value(method.get('local_steps'))}", {"local_steps"}


def _signsgd(method: Mapping[str, Any]) -> tuple[str, set[str]]:
    return f"signSGD δ={format_value(method.get('delta'))}", {"delta"}


def _sgd(_method: Mapping[str, Any]) -> tuple[str, set[str]]:
    return "uncompressed SGD", set()


_TITLES: dict[str, Callable[[Mapping[str, Any]], tuple[str, set[str]]]] = {
    "stc": _stc,
    "stc_plus": _stc_plus,
    "topk": _topk,
    "fedavg": _fedavg,
    "signsgd": _signsgd,
    "sgd": _sgd,
}


def format_fraction(p: Any) -> str:
    """Format a sparsity as ``1/n`` if it is one, else like any value.

    >>> format_fraction(0.0025), format_fraction(1 / 3), format_fraction(0.3)
    ('1/400', '1/3', '0.3')
    """
    return format_reciprocal(p) or format_value(p)


def format_value(value: Any) -> str:
    """Format a configured value briefly: floats have up to six significant digits.

    >>> format_value(1e-05), format_value(None), format_value({"a": [1, 2.0]})
    ('1e-05', 'none', 'a: 1, 2')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {format_value(inner)}" for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(format_value, value))
    return str(value)


def format_number(value: float | None, places: int = 3) -> str:
    """Format a measured number without an exponent.

    Args:
        value: the number; None gives a dash.
        places: number of significant digits. Digits before the decimal point are never dropped.

    >>> format_number(0.012345), format_number(1.2), format_number(156.99)
    ('0.0123', '1.20', '157')
    >>> format_number(15699.2), format_number(None)
    ('15,699', '–')
    """
    if value is None:
        return "–"
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else _leading_zeros(abs(value))
    return f"{value:,.{max(places - magnitude, 0)}f}"


def _leading_zeros(value: float) -> int:
    """Return minus the number of zeros after the decimal point: 0 for 0.12, -1 for 0.012."""
    return int(f"{value:e}".partition("e")[2]) + 1


def format_iterations(iterations: int, own: int) -> str:
    """Format a number of iterations, with the task's own number if that is larger.

    >>> format_iterations(5000, 5000), format_iterations(2000, 10_000)
    ('5,000', '2,000 of 10,000')
    """
    return f"{iterations:,} of {own:,}" if iterations < own else f"{iterations:,}"


def format_percent(value: float | None) -> str:
    """Format a share as a percentage with one decimal place.

    >>> format_percent(0.9013)
    '90.1 %'
    """
    return "–" if value is None else f"{100 * value:.1f} %"


def format_metric(name: str, value: float | None) -> str:
    """Format a value of a metric: accuracy as a percentage, other metrics as numbers.

    >>> format_metric("accuracy", 0.9013), format_metric("perplexity", 12.3456)
    ('90.1 %', '12.3')
    """
    return format_percent(value) if name == "accuracy" else format_number(value)


def format_bytes(nbytes: float | None) -> str:
    """Format a number of bytes in the largest unit that gives at least 1.

    >>> format_bytes(210_400), format_bytes(1.57e8), format_bytes(312)
    ('210 kB', '157 MB', '312 bytes')
    """
    if nbytes is None:
        return "–"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{format_number(nbytes / unit)} {name}"
    return f"{nbytes:.0f} bytes"


def join_words(words: Sequence[str], most: int | None = None) -> str:
    """Join words with commas and a final "and".

    Args:
        words: the words, in order.
        most: if there are more words than this, name only the first ``most`` and count the rest.

    >>> join_words(["a", "b", "c"]), join_words(["a", "b", "c"], most=1)
    ('a, b and c', 'a and 2 more')
    """
    if most is not None and len(words) > most:
        words = [*words[:most], f"{len(words) - most} more"]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
