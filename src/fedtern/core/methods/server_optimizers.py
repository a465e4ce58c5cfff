"""Server optimisers: turn the aggregate of a round into the change of the weights.

FedOpt (Reddi et al., 2021): the aggregate takes the place of a gradient. The server applies its
optimiser before it compresses the change for the broadcast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from fedtern.core.feedback import State
from fedtern.core.layout import Vector

ServerOptimizerName = Literal["momentum", "nesterov", "adam", "yogi"]
"""The server optimisers, as parameters of methods."""

SERVER_PARAMETERS = (
    "server_optimizer",
    "server_lr",
    "server_momentum",
    "server_beta2",
    "server_epsilon",
)
"""The parameters of a method that describe its server optimiser."""

_MAX_LEARNING_RATE = 2.0**20
_MAX_SQUARED = 2.0**60  # larger values are clipped, so that their squares do not overflow float32


class ServerOptimizer(Protocol):
    """Turns a sequence of aggregates into a sequence of changes.

    Attributes:
        part_id: a name that never changes, on the wire and on disk.

    """

    part_id: ClassVar[str]

    def step(self, delta: Vector, state: State) -> tuple[Vector, State]:
        """Return the change of the weights for the aggregate of a round.

        Args:
            delta: the aggregate; this function may overwrite it.
            state: the state after the previous step; it does not change.

        Returns:
            The change, which is not a part of the state, and the state after the step.

        """
        ...


@dataclass(frozen=True)
class ServerMomentum:
    """Momentum on the server: v = momentum v + delta; the change is learning_rate v.

    FedAvgM of Hsu et al. (2019); with ``nesterov``, the outer optimiser of DiLoCo.

    Args:
        learning_rate: the factor of the change.
        momentum: the factor of the velocity, from 0 to 1.
        nesterov: whether the change is learning_rate (delta + momentum v) instead.

    >>> optimizer = ServerMomentum(momentum=0.5)
    >>> change, state = optimizer.step(np.float32([1, 2]), {})
    >>> optimizer.step(np.float32([1, 0]), state)[0]
    array([1.5, 1. ], dtype=float32)
    """

    part_id: ClassVar[str] = "server_momentum"
    learning_rate: float = 1.0
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        _set_learning_rate(self)
        _set_fraction(self, "momentum")
        object.__setattr__(self, "nesterov", bool(self.nesterov))

    def step(self, delta: Vector, state: State) -> tuple[Vector, State]:
        """Add the aggregate to the velocity and return the scaled velocity."""
        momentum = np.float32(self.momentum)
        velocity = delta
        if "velocity" in state:
            velocity = momentum * state["velocity"]
            velocity += delta
        change = velocity
        if self.nesterov:
            change = momentum * velocity
            change += delta
        return np.float32(self.learning_rate) * change, {"velocity": velocity}


@dataclass(frozen=True)
class ServerAdam:
    """FedAdam and FedYogi (Reddi et al., 2021, Algorithm 2).

    Args:
        learning_rate: the factor of the change.
        momentum: beta 1, the decay of the mean of the aggregates.
        beta2: the decay of the mean of their squares.
        epsilon: tau, the degree of adaptivity; the square of it is the initial mean of squares.
        yogi: whether the mean of squares changes as in Yogi.

    """

    part_id: ClassVar[str] = "server_adam"
    learning_rate: float = 0.01
    momentum: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3
    yogi: bool = False

    def __post_init__(self) -> None:
        _set_learning_rate(self)
        _set_fraction(self, "momentum")
        _set_fraction(self, "beta2")
        # The square of a smaller epsilon is zero in float32.
        if not 1e-15 <= self.epsilon <= 1:
            raise ValueError(f"server_epsilon must be from 1e-15 to 1, got {self.epsilon}")
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "yogi", bool(self.yogi))

    def step(self, delta: Vector, state: State) -> tuple[Vector, State]:
        """Update both means and return the scaled quotient."""
        rest = np.float32(1 - self.momentum)
        mean = rest * delta
        if "mean" in state:
            mean += np.float32(self.momentum) * state["mean"]
        squares = np.square(np.clip(delta, -_MAX_SQUARED, _MAX_SQUARED))
        before = state.get("squares")
        if before is None:
            before = np.full_like(delta, np.float32(self.epsilon**2))
        new = np.float32(1 - self.beta2)
        if self.yogi:
            next_squares = before - new * squares * np.sign(before - squares)
        else:
            next_squares = np.float32(self.beta2) * before + new * squares
        change = np.sqrt(next_squares)
        change += np.float32(self.epsilon)
        np.divide(mean, change, out=change)
        change *= np.float32(self.learning_rate)
        return change, {"mean": mean, "squares": next_squares}


def make_server_optimizer(
    name: ServerOptimizerName | None,
    learning_rate: float | None = None,
    momentum: float = 0.9,
    beta2: float = 0.99,
    epsilon: float = 1e-3,
) -> ServerOptimizer | None:
    """Make the server optimiser that the parameters of a method describe.

    Args:
        name: the optimiser; None for no optimiser.
        learning_rate: the factor of the change; None for 1 with momentum and 0.01 with Adam and
            Yogi.
        momentum: the decay of the velocity, or beta 1.
        beta2: the decay of the mean of squares, for Adam and Yogi.
        epsilon: tau, the degree of adaptivity of Adam and Yogi.

    Raises:
        ValueError: a value is out of range, or has no effect with this optimiser.

    """
    adaptive = name in ("adam", "yogi")
    ignored = {
        "server_lr": name is None and learning_rate is not None,
        "server_momentum": name is None and momentum != 0.9,
        "server_beta2": not adaptive and beta2 != 0.99,
        "server_epsilon": not adaptive and epsilon != 1e-3,
    }
    for parameter, is_ignored in ignored.items():
        if is_ignored:
            raise ValueError(
                f"{parameter} has no effect with server_optimizer={name!r}; leave it out, or choose"
                f" {'momentum, nesterov, adam or yogi' if name is None else 'adam or yogi'}"
            )
    if name is None:
        return None
    if adaptive:
        rate = 0.01 if learning_rate is None else learning_rate
        return ServerAdam(rate, momentum, beta2, epsilon, name == "yogi")
    return ServerMomentum(
        1.0 if learning_rate is None else learning_rate, momentum, name == "nesterov"
    )


def _set_learning_rate(optimizer: Any) -> None:
    value = optimizer.learning_rate
    if not 0 < value <= _MAX_LEARNING_RATE or math.isnan(value):
        raise ValueError(f"server_lr must be positive and at most 2**20, got {value}")
    object.__setattr__(optimizer, "learning_rate", float(value))


def _set_fraction(optimizer: Any, field: str) -> None:
    value = getattr(optimizer, field)
    if not 0 <= value < 1:
        name = "server_momentum" if field == "momentum" else f"server_{field}"
        raise ValueError(f"{name} must be in [0, 1), got {value}")
    object.__setattr__(optimizer, field, float(value))
