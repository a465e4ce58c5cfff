"""Momentum that is accumulated before values are chosen, not after (Lin et al., 2018)."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.core.compressors import TopK
from fedtern.core.feedback.error_feedback import return_to_residual
from fedtern.core.feedback.interface import State
from fedtern.core.layout import Layout, Scope, Vector
from fedtern.core.updates import Sparse, Update


@dataclass(frozen=True)
class MomentumCorrection:
    """Deep gradient compression: residuals of velocities, and both forgotten where one was sent.

    Args:
        p: the share of values that is sent once the warm-up is over.
        scope: whether it is that of each tensor or of the model.
        momentum: m of the velocity u = m u + delta, of which v = v + u is the residual.
        clip: the greatest length of a delta; a longer one is shortened to it.
        warmup: how many steps each stage of the warm-up takes; the stages send 1/4, 1/16, 1/64, …
            of the values, down to p.

    """

    part_id: ClassVar[str] = "momentum_correction"
    p: float
    scope: Scope = "tensor"
    momentum: float = 0.9
    clip: float | None = None
    warmup: int = 0
    observes: ClassVar[bool] = False

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
        """The share of values that is sent after so many steps.

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
        """Send the largest residuals; residual and velocity start anew where they were sent."""
        velocity, residual, steps = self._accumulated(delta, state)
        update = TopK(self.rate(steps), self.scope).compress(residual, layout, rng)
        return update, _settled(velocity, residual, steps, update)

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """The state after a step that is known to have given ``update``."""
        assert isinstance(update, Sparse)  # as ``step`` makes them
        return _settled(*self._accumulated(delta, state), update)

    def give_back(self, state: State, update: Update) -> State:
        """Put the update back into the residual; velocities have begun anew and stay so."""
        return return_to_residual(state, update)

    def _accumulated(self, delta: Vector, state: State) -> tuple[Vector, Vector, int]:
        if self.clip is not None:
            length = float(np.sqrt(np.square(delta, dtype=np.float64).sum()))
            if np.isfinite(length) and length > self.clip:
                delta *= np.float32(self.clip / length)
        velocity = delta
        if "velocity" in state:
            velocity = np.float32(self.momentum) * state["velocity"]
            velocity += delta
        residual = velocity + state["residual"] if "residual" in state else velocity.copy()
        return velocity, residual, int(state["steps"][0]) if "steps" in state else 0


def _settled(velocity: Vector, residual: Vector, steps: int, update: Sparse) -> State:
    velocity[update.indices] = 0
    residual[update.indices] = 0
    # Exact in float32 as far as it counts: no warm-up has more stages than 2**24 steps.
    counted = np.array([min(steps + 1, 1 << 24)], np.float32)
    return {"velocity": velocity, "residual": residual, "steps": counted}
