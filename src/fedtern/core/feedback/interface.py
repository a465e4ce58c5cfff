"""What a memory promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Update

State = Mapping[str, Vector]
EMPTY: State = {}
OBSERVED = "observed"  # what training saw besides the delta is put into a state under this name


class Feedback(Protocol):
    """Turns a stream of deltas into a stream of updates.

    ``observes`` tells whether it would use second moments of what a delta was made of.
    """

    observes: ClassVar[bool]

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
