"""The residual that most methods keep, and those that keep nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from fedtern.core.compressors import AccumulatingCompressor, Compressor, next_thresholds
from fedtern.core.feedback.interface import EMPTY, State
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import SPARSE_UPDATES, Update


@dataclass(frozen=True)
class ErrorFeedback:
    """Adds to each delta what earlier compressions lost.

    Algorithm 2: R_i on the clients, R on the server.
    """

    part_id: ClassVar[str] = "error_feedback"
    compressor: Compressor
    observes: ClassVar[bool] = False

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        """Compress residual + delta; what the update leaves out is the next residual."""
        if (fused := self._fused) is not None:
            known = state.get("residual"), state.get("thresholds")
            update, thresholds = fused.accumulate(delta, *known, layout)
            return update, {**self._settled(delta, update), "thresholds": thresholds}
        target = with_residual(delta, state)
        update = self.compressor.compress(target, layout, rng)
        return update, self._settled(target, update)

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """The state after a step that is known to have given ``update``."""
        target = with_residual(delta, state)
        if self._fused is not None and isinstance(update, SPARSE_UPDATES):
            thresholds = next_thresholds(update, np.abs(target[update.indices]))
            return {**self._settled(target, update), "thresholds": thresholds}
        return self._settled(target, update)

    def give_back(self, state: State, update: Update) -> State:
        """Put the whole update back into the residual."""
        return return_to_residual(state, update)

    @cached_property
    def _fused(self) -> AccumulatingCompressor | None:
        # Kept, because asking a protocol takes longer than many a step.
        return self.compressor if isinstance(self.compressor, AccumulatingCompressor) else None

    def _settled(self, target: Vector, update: Update) -> State:
        if self.compressor.loss == "none":
            return EMPTY
        update.add_to(target, -1.0)
        return {"residual": target}


@dataclass(frozen=True)
class Memoryless:
    """Forgets what compression loses, as signSGD does."""

    part_id: ClassVar[str] = "memoryless"
    compressor: Compressor
    observes: ClassVar[bool] = False

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
        """Nothing to remember."""
        return EMPTY

    def give_back(self, state: State, update: Update) -> State:
        """Nothing to put it into: an update that did not count is gone."""
        return state


def with_residual(delta: Vector, state: State) -> Vector:
    """What there is to send, in the delta's buffer; the old residual survives."""
    return np.add(delta, state["residual"], out=delta) if "residual" in state else delta


def return_to_residual(state: State, update: Update) -> State:
    """A state whose residual has an update in it again."""
    residual = (
        state["residual"].copy() if "residual" in state else np.zeros(update.size, np.float32)
    )
    update.add_to(residual)
    return {**state, "residual": residual}
