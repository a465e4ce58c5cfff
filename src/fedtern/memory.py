"""What one side of a link remembers between rounds.

A memory's state is a mapping of named vectors; a missing vector stands for zeros. States are
values: a step returns a new one and leaves the old one as it was, so that a refused step costs
nothing. The ``delta`` given to a step is taken over and written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedtern.compressors import Compressor
from fedtern.layout import Layout, Vector
from fedtern.updates import Update

State = Mapping[str, Vector]
EMPTY: State = {}


class Memory(Protocol):
    """Turns a stream of deltas into a stream of updates."""

    def step(
        self, delta: Vector, state: State, layout: Layout, rng: np.random.Generator
    ) -> tuple[Update, State]:
        """Compress the next delta."""
        ...

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """The state after a step that is known to have given ``update``."""
        ...

    def give_back(self, state: State, update: Update) -> State:
        """The state after learning that ``update`` never took effect."""
        ...


@dataclass(frozen=True)
class ErrorFeedback:
    """Adds to each delta what earlier compressions lost.

    Algorithm 2: R_i on the clients, R on the server.
    """

    compressor: Compressor

    def step(
        self, delta: Vector, state: State, layout: Layout, rng: np.random.Generator
    ) -> tuple[Update, State]:
        """Compress residual + delta; what the update leaves out is the next residual."""
        target = self._target(delta, state)
        update = self.compressor.compress(target, layout, rng)
        return update, self._settle(target, update)

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """The state after a step that is known to have given ``update``."""
        return self._settle(self._target(delta, state), update)

    def give_back(self, state: State, update: Update) -> State:
        """Put the whole update back into the residual."""
        if "residual" not in state:
            return {"residual": update.to_dense()}
        residual = state["residual"].copy()
        update.add_to(residual)
        return {"residual": residual}

    def _target(self, delta: Vector, state: State) -> Vector:
        # The delta's buffer becomes the next residual: no allocation, and the old one survives.
        return np.add(delta, state["residual"], out=delta) if "residual" in state else delta

    def _settle(self, target: Vector, update: Update) -> State:
        if self.compressor.lossless:
            return EMPTY
        update.add_to(target, -1.0)
        return {"residual": target}


@dataclass(frozen=True)
class Memoryless:
    """Forgets what compression loses, as signSGD does."""

    compressor: Compressor

    def step(
        self, delta: Vector, state: State, layout: Layout, rng: np.random.Generator
    ) -> tuple[Update, State]:
        """Compress the delta alone."""
        return self.compressor.compress(delta, layout, rng), EMPTY

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """Nothing to remember."""
        return EMPTY

    def give_back(self, state: State, update: Update) -> State:
        """Nothing to put it into: an update that did not count is gone."""
        return state
