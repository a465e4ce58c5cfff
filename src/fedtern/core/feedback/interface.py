"""Interface of feedback rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Update

State = Mapping[str, Vector]
"""Named vectors that a feedback rule keeps between rounds."""

EMPTY: State = {}


class Feedback(Protocol):
    """Turns a sequence of deltas into a sequence of updates.

    Attributes:
        part_id: a name that never changes, on the wire and on disk.
        uses_moments: whether ``step`` uses the second moments of a delta.

    """

    part_id: ClassVar[str]
    uses_moments: ClassVar[bool]

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
            delta: the change to send; this function may overwrite it.
            state: the state after the previous step.
            layout: the model's tensors.
            rng: source of randomness.
            moments: for each weight, the sum over examples of the squared contribution of each
                example to the delta; only for rules with ``uses_moments``.

        Returns:
            The update, and the state after it.

        Raises:
            NonFiniteError: a value is NaN, infinite or beyond 2**100.

        """
        ...

    def follow(self, delta: Vector, state: State, update: Update) -> State:
        """Return the state after a step whose update is already known.

        Args:
            delta: the delta of that step; this function may overwrite it.
            state: the state before the step.
            update: the update that the step returned.

        """
        ...

    def give_back(self, state: State, update: Update) -> State:
        """Return the state after taking back an update that did not count."""
        ...
