"""Names and numbers as people write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedtern.core.methods import METHODS
from fedtern.core.numbers import one_over

# What a method does when nothing is said; only what differs is worth a word.
_USUAL = {"local_steps": 1, "scope": "model", "weighted": False}


def method_label(method: Mapping[str, Any]) -> str:
    """A method's name with the parameters that tell it from others.

    >>> method_label({"name": "stc", "p_up": 0.0025, "p_down": 0.0025, "local_steps": 1})
    'STC p=1/400'
    >>> method_label({"name": "fedavg", "local_steps": 400, "weighted": True})
    'FedAvg n=400, weighted'
    >>> method_label({"name": "dgc", "p": 0.01})
    'dgc(p=1/100)'
    """
    name = str(method.get("name"))
    if name not in _NAMES:
        usual = METHODS[name].parameters if name in METHODS else {}
        unusual = {k: v for k, v in method.items() if k != "name" and usual.get(k, ...) != v}
        inside = ", ".join(f"{k}={fraction(v)}" for k, v in unusual.items())
        return f"{name}({inside})" if inside else name
    title, told = _NAMES[name](method)
    rest = {k: v for k, v in method.items() if k not in told and k != "name"}
    return ", ".join([title, *(_extra(k, v) for k, v in rest.items() if _USUAL.get(k) != v)])


def _extra(key: str, value: Any) -> str:
    if key == "local_steps":
        return f"n={plain(value)}"
    if key == "scope" and value == "tensor":
        return "by tensor"
    if key == "weighted" and value is True:
        return "weighted"
    return f"{key}={plain(value)}"


def _stc(method: Mapping[str, Any]) -> tuple[str, set[str]]:
    up, down = method.get("p_up"), method.get("p_down")
    rates = f"{fraction(up)}" if up == down else f"{fraction(up)} up, {fraction(down)} down"
    return f"STC p={rates}", {"p_up", "p_down"}


def _topk(method: Mapping[str, Any]) -> tuple[str, set[str]]:
    up, down = method.get("p_up"), method.get("p_down")
    # By default only what goes up is sparse, so that both ways are is what has to be said.
    if down is not None:
        both = up == down
        rates = f"{fraction(up)} both ways" if both else f"{fraction(up)} up, {fraction(down)} down"
        return f"top-k p={rates}", {"p_up", "p_down"}
    return f"top-k p={fraction(up)}", {"p_up", "p_down"}


def _fedavg(method: Mapping[str, Any]) -> tuple[str, set[str]]:
    return f"FedAvg n={plain(method.get('local_steps'))}", {"local_steps"}


def _signsgd(method: Mapping[str, Any]) -> tuple[str, set[str]]:
    return f"signSGD δ={plain(method.get('delta'))}", {"delta"}


def _sgd(method: Mapping[str, Any]) -> tuple[str, set[str]]:
    return "uncompressed SGD", set()


_NAMES: dict[str, Callable[[Mapping[str, Any]], tuple[str, set[str]]]] = {
    "stc": _stc,
    "topk": _topk,
    "fedavg": _fedavg,
    "signsgd": _signsgd,
    "sgd": _sgd,
}


def fraction(p: Any) -> str:
    """A sparsity as one over a whole number where it is one.

    >>> fraction(0.0025), fraction(1 / 3), fraction(0.3)
    ('1/400', '1/3', '0.3')
    """
    return one_over(p) or plain(p)


def plain(value: Any) -> str:
    """A configured value as short as it can be read.

    >>> plain(1e-05), plain(None), plain({"a": [1, 2.0]})
    ('1e-05', 'none', 'a: 1, 2')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {plain(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value))
    return str(value)


def digits(value: float | None, places: int = 3) -> str:
    """A measured number with so many significant digits, never in powers of ten.

    >>> digits(0.012345), digits(1.2), digits(156.99), digits(15699.2), digits(None)
    ('0.0123', '1.20', '157', '15,699', '–')
    """
    if value is None:
        return "–"
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else _leading(abs(value))
    return f"{value:,.{max(places - magnitude, 0)}f}"


def _leading(value: float) -> int:
    """Minus the number of zeros after the point: 0 for 0.12, -1 for 0.012."""
    return int(f"{value:e}".partition("e")[2]) + 1


def length(iterations: int, own: int) -> str:
    """For how many iterations something ran, of its task's own if it ended before.

    >>> length(5000, 5000), length(2000, 10_000)
    ('5,000', '2,000 of 10,000')
    """
    return f"{iterations:,} of {own:,}" if iterations < own else f"{iterations:,}"


def percent(value: float | None) -> str:
    """A share in per cent.

    >>> percent(0.9013)
    '90.1 %'
    """
    return "–" if value is None else f"{100 * value:.1f} %"


def size(nbytes: float | None) -> str:
    """Bytes in the unit that suits them.

    >>> size(210_400), size(1.57e8), size(312)
    ('210 kB', '157 MB', '312 bytes')
    """
    if nbytes is None:
        return "–"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{digits(nbytes / unit)} {name}"
    return f"{nbytes:.0f} bytes"


def listed(parts: list[str], most: int | None = None) -> str:
    """Words in a row, as in a sentence; of more than ``most``, the rest is counted.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c"], most=1)
    ('a, b and c', 'a and 2 more')
    """
    if most is not None and len(parts) > most:
        parts = [*parts[:most], f"{len(parts) - most} more"]
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)
