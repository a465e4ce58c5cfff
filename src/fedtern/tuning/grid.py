"""The candidates: combinations of local steps and of the shares that messages contain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from fedtern.core.methods import METHODS
from fedtern.core.names import look_up
from fedtern.core.numbers import format_parameter
from fedtern.data.environment import Environment
from fedtern.runs import complete_method, parse_method

LOCAL_STEPS = (1, 5, 25)
"""Default values of ``local_steps``."""

P_UP = (1 / 25, 1 / 100, 1 / 400)
"""Default values of ``p_up``."""

SMALLEST_MESSAGES = {"codec": "adaptive", "magnitudes": "powers"}
"""Parameters of candidates that change only how many bytes their messages have."""


def default_p_down(p_up: float, environment: Environment) -> tuple[float, ...]:
    """Return the shares of values in a broadcast that are tried with a share in uploads.

    These are the same share, and the share times the participation. A client downloads the
    broadcasts that it missed, about one over the participation of them, before each of its uploads.
    The smaller share makes its downloads about as large as its uploads.

    >>> default_p_down(1 / 25, Environment())
    (0.04, 0.004)
    """
    present = Fraction(environment.cohort_size, environment.clients)
    smaller = float(Fraction(p_up).limit_denominator(10**9) * present)
    return tuple(dict.fromkeys((p_up, smaller)))


@dataclass(frozen=True)
class Grid:
    """Values of the parameters to search; None for the default values.

    Methods such as ``sbc`` call ``p_up`` just ``p``.

    Attributes:
        local_steps: Local iterations between two uploads.
        p_up: Shares of values in an upload.
        p_down: Shares of values in a broadcast. By default they depend on ``p_up``; see
            ``default_p_down``.

    Raises:
        ValueError: There is no value of a parameter, or one is not a number.

    """

    local_steps: Sequence[int] | None = None
    p_up: Sequence[float] | None = None
    p_down: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            values = getattr(self, each.name)
            if values is not None:
                object.__setattr__(self, each.name, _check_values(each.name, values))

    def methods(self, method: str | Mapping[str, Any], environment: Environment) -> list[Method]:
        """Return the method with each combination of values, without repetitions.

        Parameters that are given with the method are fixed.

        Args:
            method: A method, such as ``"stc:scope=tensor"``.
            environment: Gives the participation.

        Raises:
            ValueError: The method is unknown or has no parameter to search, or a value is invalid.

        >>> grid = Grid(local_steps=[1, 5], p_up=[1 / 25])
        >>> [(m["local_steps"], m["p_down"]) for m in grid.methods("stc", Environment())]
        [(1, 0.04), (1, 0.004), (5, 0.04), (5, 0.004)]
        """
        fixed = parse_method(method) if isinstance(method, str) else dict(method)
        name = fixed["name"]
        known = look_up(name, METHODS, "method").defaults
        upload = "p_up" if "p_up" in known else "p"
        names = self._searched(name, fixed, known, upload)
        compact = {key: value for key, value in SMALLEST_MESSAGES.items() if key in known}
        local_steps = self.local_steps or LOCAL_STEPS
        p_up = self.p_up or P_UP
        found: list[Method] = []
        for steps in local_steps if "local_steps" in names else (None,):
            for up in p_up if "p_up" in names else (fixed.get(upload),):
                for down in self._p_down(up, environment) if "p_down" in names else (None,):
                    values = {"local_steps": steps, "p_up": up, "p_down": down}
                    chosen = {names[key]: value for key, value in values.items() if key in names}
                    values = {**compact, **fixed, **chosen}
                    complete = complete_method(values, environment.participation)
                    found += [] if complete in found else [complete]
        return found

    def _p_down(self, p_up: Any, environment: Environment) -> Sequence[float]:
        return default_p_down(float(p_up), environment) if self.p_down is None else self.p_down

    def _searched(
        self, name: str, fixed: Mapping[str, Any], known: Iterable[str], upload: str
    ) -> dict[str, str]:
        """Return the parameters to search, with their names in the method."""
        named = {"local_steps": "local_steps", "p_up": upload, "p_down": "p_down"}
        own = {key: value for key, value in named.items() if value in known}
        if not own:
            raise ValueError(
                f"method {name!r} has none of the parameters local_steps, p_up and p_down, so there"
                " is nothing to tune; choose another method, such as stc"
            )
        for key in ("local_steps", "p_up", "p_down"):
            values = getattr(self, key)
            if values is None:
                continue
            if key not in own:
                raise ValueError(
                    f"method {name!r} has no parameter {key}; leave out the values of {key}"
                )
            if own[key] in fixed:
                raise ValueError(
                    f"{key} is fixed to {format_parameter(fixed[own[key]])} by the method; leave it"
                    f" out there, or leave out the values of {key}"
                )
        return {key: value for key, value in own.items() if value not in fixed}


Method = dict[str, Any]
"""Name and parameters of a method."""


def _check_values(name: str, values: Sequence[float]) -> tuple[float, ...]:
    found = tuple(dict.fromkeys(values))
    if not found:
        raise ValueError(f"{name} has no values; give at least one, or leave it out")
    whole = name == "local_steps"
    for value in found:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or (value < 1 or value != int(value) if whole else not 0 < value <= 1):
            wanted = "whole numbers of at least 1" if whole else "fractions in (0, 1]"
            raise ValueError(f"{name} must be {wanted}, got {value!r}")
    return tuple(int(v) for v in found) if whole else tuple(float(v) for v in found)


def searched_values(methods: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the parameters that differ between methods, with their values in ascending order.

    >>> searched_values([{"name": "stc", "p_up": 0.04}, {"name": "stc", "p_up": 0.01}])
    {'p_up': [0.01, 0.04]}
    """
    names = [key for key in methods[0] if key in ("local_steps", "p_up", "p", "p_down")]
    # A parameter may also have a word for a value.
    values = {
        key: sorted(
            {each[key] for each in methods}, key=lambda value: (isinstance(value, str), value)
        )
        for key in names
    }
    return {key: found for key, found in values.items() if len(found) > 1}


def beyond(values: Sequence[float], value: float) -> float | None:
    """Return the next value beyond an edge of a grid, at the distance of its neighbour.

    Args:
        values: The values, in ascending order; at least two.
        value: One of them.

    Returns:
        None if the value is not at an edge, or if nothing lies beyond it.

    >>> beyond([1, 5, 25], 25), beyond([1, 5, 25], 5), beyond([1, 5, 25], 1)
    (125, None, None)
    >>> beyond([1 / 400, 1 / 100, 1 / 25], 1 / 400) == 1 / 1600
    True
    """
    if value not in (values[0], values[-1]):
        return None
    neighbour = values[1] if value == values[0] else values[-2]
    if isinstance(value, int):
        further = max(round(value * value / neighbour), 1)
        return further if further not in values else None
    exact = Fraction(value).limit_denominator(10**9)
    ratio = exact / Fraction(neighbour).limit_denominator(10**9)
    further_share = min(exact * ratio, Fraction(1))
    share = float(1 / Fraction(round(1 / further_share)))
    return share if share not in values and not math.isclose(share, value) else None
