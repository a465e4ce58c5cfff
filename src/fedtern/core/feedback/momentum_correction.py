"""Momentum that is accumulated before values are selected (Lin et al., 2018)."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.core.compressors import TopK
from fedtern.core.feedback.error_feedback import return_to_residual
from fedtern.core.feedback.interface import State
from fedtern.core.layout import Layout, Scope, Vector
from fedtern.core.updates import Limits, Sparse, Update


@dataclass(frozen=True)
class MomentumCorrection:
    """Deep gradient compression: the residual accumulates velocities instead of deltas.

    Velocity and residual are reset to zero for the values that are sent.

    Args:
        p: the share of values that are sent after the warm-up.
        scope: whether the share is of each tensor or of the model.
        momentum: m in the velocity u = m u + delta; the residual is v = v + u.
        clip: the maximum norm of a delta, or None; a longer delta is scaled down.
        warmup: the number of steps in each stage of the warm-up. The stages send 1/4, 1/16, 1/64,
            … of the values, down to p.

    """

    part_id: ClassVar[str] = "momentum_correction"
    p: float
    scope: Scope = "tensor"
    momentum: float = 0.9
    clip: float | None = None
    warmup: int = 0
    uses_moments: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", TopK(self.p, self.scope).p)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        object.__setattr__(self, "momentum", float(self.momentum))
        if self.clip is not None:
            if not 0 < self.clip < np.inf:
                raise ValueError(f"clip must be positive or None, got {self.clip}")
            object.__setattr__(self, "clip", float(self.clip))
        if not 0 <= self.warmup < 1 << 20:
            raise ValueError(f"warmup must be from 0 to {(1 << 20) - 1}, got {self.warmup}")
        object.__setattr__(self, "warmup", operator.index(self.warmup))

    def rate(self, steps: int) -> float:
        """Return the share of values that are sent after the given number of steps.

        >>> [MomentumCorrection(0.01, warmup=2).rate(steps) for steps in (0, 1, 2, 4, 6, 99)]
        [0.25, 0.25, 0.0625, 0.015625, 0.01, 0.01]
        """
        stage = steps // self.warmup if self.warmup else 100
        return max(0.25 ** min(stage + 1, 100), self.p)

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        """Send the largest residuals, and reset residual and velocity for them."""
        velocity, residual, steps = self._accumulate(delta, state)
        update = TopK(self.rate(steps), self.scope).compress(residual, layout, rng)
        return update, _next_state(velocity, residual, steps, update)

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """Return the state after a step whose update is already known."""
        assert isinstance(update, Sparse)  # ``step`` returns no other updates
        velocity, residual, steps = self._accumulate(delta, state)
        return _next_state(velocity, residual, steps, update)

    def give_back(self, state: State, update: Update) -> State:
        """Add the update to the residual; its velocity stays reset."""
        return return_to_residual(state, update)

    def limits(self, layout: Layout) -> Limits:
        """Return the limits of the first stage of the warm-up: a new client can start any time."""
        return TopK(self.rate(0), self.scope).limits(layout)

    def _accumulate(self, delta: Vector, state: State) -> tuple[Vector, Vector, int]:
        """Return the new velocity, the new residual and the number of steps so far."""
        if self.clip is not None:
            length = float(np.sqrt(np.square(delta, dtype=np.float64).sum()))
            if np.isfinite(length) and length > self.clip:
                delta *= np.float32(self.clip / length)
        velocity = delta
        if "velocity" in state:
            velocity = np.float32(self.momentum) * state["velocity"]
            velocity += delta
        residual = velocity + state["residual"] if "residual" in state else velocity.copy()
        steps = int(state["steps"][0]) if "steps" in state else 0
        return velocity, residual, steps


def _next_state(velocity: Vector, residual: Vector, steps: int, update: Sparse) -> State:
    velocity[update.indices] = 0
    residual[update.indices] = 0
    # Float32 is exact up to 2**24 steps, which are at least 16 stages of a warm-up.
    next_steps = np.array([min(steps + 1, 1 << 24)], np.float32)
    return {"velocity": velocity, "residual": residual, "steps": next_steps}
