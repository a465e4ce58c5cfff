"""Error feedback whose residual decays, so that it acts as a momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.core.compressors import Compressor, find_limits
from fedtern.core.feedback.error_feedback import return_to_residual
from fedtern.core.feedback.interface import State
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Limits, Update


@dataclass(frozen=True)
class DecayingFeedback:
    """Compresses ``decay * residual + delta``; the difference to the update is the next residual.

    In DeMo (Peng et al., 2024), the residual is the momentum of a client's optimiser. In SparseLoCo
    (Sarfi et al., 2025), it takes the place of the momentum of the outer optimiser.

    Args:
        compressor: how the sum is compressed.
        decay: the factor of the residual, from 0 to 1.

    """

    part_id: ClassVar[str] = "decaying_feedback"
    compressor: Compressor
    decay: float
    uses_moments: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay must be from 0 to 1, got {self.decay}")
        object.__setattr__(self, "decay", float(self.decay))

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        """Compress the decayed residual plus the delta."""
        target = self._accumulate(delta, state)
        update = self.compressor.compress(target, layout, rng)
        return update, _next_state(target, update)

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """Return the state after a step whose update is already known."""
        return _next_state(self._accumulate(delta, state), update)

    def give_back(self, state: State, update: Update) -> State:
        """Add the whole update to the residual, where it decays like the rest."""
        return return_to_residual(state, update)

    def limits(self, layout: Layout) -> Limits:
        """Return the limits of the compressor's updates."""
        return find_limits(self.compressor, layout)

    def _accumulate(self, delta: Vector, state: State) -> Vector:
        if "residual" not in state:
            return delta
        target: Vector = np.float32(self.decay) * state["residual"]
        target += delta
        return target


def _next_state(target: Vector, update: Update) -> State:
    update.add_to(target, -1.0)
    return {"residual": target}
