"""Error feedback, which most methods use, and the rule without memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from fedtern.core.compressors import AccumulatingCompressor, Compressor, find_limits
from fedtern.core.feedback.interface import EMPTY, State
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import SPARSE_UPDATES, Limits, Update


@dataclass(frozen=True)
class ErrorFeedback:
    """Adds the residual, which is the error of earlier compressions, to each delta.

    Algorithm 2: R_i on the clients, R on the server.
    """

    part_id: ClassVar[str] = "error_feedback"
    compressor: Compressor
    uses_moments: ClassVar[bool] = False

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        """Compress residual + delta; the difference to the update is the next residual."""
        accumulating = self._accumulating
        if accumulating is not None:
            update, memory = accumulating.accumulate(delta, state, layout)
            return update, {**self._next_state(delta, update), **memory}
        target = add_residual(delta, state)
        update = self.compressor.compress(target, layout, rng)
        return update, self._next_state(target, update)

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """Return the state after a step whose update is already known."""
        target = add_residual(delta, state)
        if self._accumulating is not None and isinstance(update, SPARSE_UPDATES):
            memory = self._accumulating.remember(update, np.abs(target[update.indices]))
            return {**self._next_state(target, update), **memory}
        return self._next_state(target, update)

    def give_back(self, state: State, update: Update) -> State:
        """Add the whole update to the residual."""
        return return_to_residual(state, update)

    def limits(self, layout: Layout) -> Limits:
        """Return the limits of the compressor's updates."""
        return find_limits(self.compressor, layout)

    @cached_property
    def _accumulating(self) -> AccumulatingCompressor | None:
        # Cached, because ``isinstance`` with a protocol takes longer than a step of a small model.
        compressor = self.compressor
        return compressor if isinstance(compressor, AccumulatingCompressor) else None

    def _next_state(self, target: Vector, update: Update) -> State:
        if self.compressor.loss == "none":
            return EMPTY
        update.add_to(target, -1.0)
        return {"residual": target}


@dataclass(frozen=True)
class Memoryless:
    """Drops the error of compression, as signSGD does."""

    part_id: ClassVar[str] = "memoryless"
    compressor: Compressor
    uses_moments: ClassVar[bool] = False

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        """Compress the delta alone."""
        return self.compressor.compress(delta, layout, rng), EMPTY

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """Return the empty state."""
        return EMPTY

    def give_back(self, state: State, update: Update) -> State:
        """Return the state unchanged: an update that did not count is lost."""
        return state

    def limits(self, layout: Layout) -> Limits:
        """Return the limits of the compressor's updates."""
        return find_limits(self.compressor, layout)


def add_residual(delta: Vector, state: State) -> Vector:
    """Add the residual to ``delta``, in place, and return it; the state does not change."""
    return np.add(delta, state["residual"], out=delta) if "residual" in state else delta


def return_to_residual(state: State, update: Update) -> State:
    """Return a state with the update added to its residual."""
    if "residual" in state:
        residual = state["residual"].copy()
    else:
        residual = np.zeros(update.size, np.float32)
    update.add_to(residual)
    return {**state, "residual": residual}
