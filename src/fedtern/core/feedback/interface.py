"""What a memory promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Update

State = Mapping[str, Vector]
EMPTY: State = {}


class Feedback(Protocol):
    """Turns a stream of deltas into a stream of updates.

    Attributes:
        part_id: a name that stays the same for ever, on the wire and on disk.
        observes: whether ``step`` uses the second moments of a delta.

    """

    part_id: ClassVar[str]
    observes: ClassVar[bool]

    def step(
        self,
        delta: Vector,
        state: State,
        layout: Layout,
        rng: np.random.Generator,
        moments: Vector | None = None,
    ) -> tuple[Update, State]:
        """Compress the next delta.

        Args:
            delta: the change to send; this function takes it over and may write to it.
            state: the state after the previous step.
            layout: the model's tensors.
            rng: source of randomness.
            moments: for each weight, the sum over examples of the square of each one's share in
                the delta; only for rules that observe them.

        Returns:
            The update, and the state after it.

        """
        ...

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """Return the state after a step that is known to have given ``update``."""
        ...

    def give_back(self, state: State, update: Update) -> State:
        """Return the state with an ``update`` put back that did not count."""
        ...
