"""A model's weights as a fold over the broadcasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels import apply_sign_counts
from fedtern.core.layout import Vector
from fedtern.core.updates import Signs, Update, is_empty
from fedtern.core.updates.sums import MAX_UPDATES, SignCounts


@dataclass
class _Votes:
    """Signs counted since the weights were last changed by anything else."""

    base: Vector
    num_updates: int
    counts: NDArray[np.int32]
    step: float


class Replica:
    """Weights that end up with the same bits wherever the same updates are applied.

    Sign updates are counted and the weights computed from the counts, so that a sum of signs
    does what the signs would have done one by one.
    """

    def __init__(self, weights: Vector, stamp: bytes = bytes(3)) -> None:
        self.weights = weights
        self.stamp = stamp  # of the history that led here
        self._votes: _Votes | None = None

    def apply(self, update: Update) -> None:
        """Advance by an update, or by several at once where it is a sum of them."""
        if isinstance(update, Signs):
            counts = np.where(update.positive, np.int32(1), np.int32(-1))
            self._vote(SignCounts(update.size, 1, counts, update.step))
        elif isinstance(update, SignCounts):
            self._vote(update)
        elif not is_empty(update):
            self._votes = None
            update.add_to(self.weights)

    def advance(self, update: Update, stamp: bytes) -> None:
        """Apply an update that leads to the history of this stamp."""
        self.apply(update)
        self.stamp = stamp

    def parts(self) -> tuple[Vector, SignCounts | None]:
        """What a new replica starts from, and then applies, to equal this one for ever."""
        if self._votes is None:
            return self.weights, None
        votes = self._votes
        return votes.base, SignCounts(votes.base.size, votes.num_updates, votes.counts, votes.step)

    @property
    def num_sign_updates(self) -> int:
        """How many sign updates have been counted on the present base."""
        return 0 if self._votes is None else self._votes.num_updates

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of the parts by name, for a snapshot."""
        weights, votes = self.parts()
        arrays: dict[str, NDArray[Any]] = {
            "weights": weights.copy(),
            "stamp": np.frombuffer(self.stamp, np.uint8),
        }
        if votes is None:
            return arrays
        turns, step = np.array([votes.num_updates], np.int64), np.array([votes.step], np.float32)
        counts = votes.counts.copy()
        return {**arrays, "votes.counts": counts, "votes.turns": turns, "votes.step": step}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Replica:
        """Undo ``to_arrays``."""
        replica = cls(arrays["weights"].copy(), arrays["stamp"].tobytes())
        if "votes.counts" in arrays:
            counts, step = arrays["votes.counts"], float(arrays["votes.step"][0])
            turns = int(arrays["votes.turns"][0])
            replica.apply(SignCounts(counts.size, turns, counts, step))
        return replica

    def _vote(self, change: SignCounts) -> None:
        votes = self._votes
        full = self.num_sign_updates + change.num_updates > MAX_UPDATES
        if votes is None or votes.step != change.step or full:
            votes = _Votes(self.weights.copy(), 0, np.zeros_like(change.counts), change.step)
        votes.num_updates += change.num_updates
        votes.counts += change.counts
        self._votes = votes
        apply_sign_counts(self.weights, votes.base, votes.counts, np.float64(votes.step))
