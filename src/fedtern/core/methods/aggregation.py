"""Aggregations: combine the updates of a cohort into one delta."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedtern.core.kernels import count_votes
from fedtern.core.layout import Vector
from fedtern.core.updates import Signs, Update


class Aggregate(Protocol):
    """Combines updates into one vector.

    Attributes:
        part_id: a name that never changes, on the wire and on disk.

    """

    part_id: ClassVar[str]

    def combine(self, updates: Sequence[Update], examples: Sequence[float]) -> Vector:
        """Combine at least one update into a new vector.

        Args:
            updates: the updates; their order may affect the rounding of the result.
            examples: the number of examples that each update was trained on.

        """
        ...

    def shares(self, examples: Sequence[float]) -> list[float]:
        """Return the weight of each update in averages, which sum to 1.

        Args:
            examples: the number of examples that each update was trained on.

        """
        ...


@dataclass(frozen=True)
class Mean:
    """The mean of the updates.

    Args:
        weighted: whether updates are weighted by their number of examples (FedAvg) or all the same
            (Algorithm 2 of the paper).

    """

    part_id: ClassVar[str] = "mean"
    weighted: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "weighted", bool(self.weighted))

    def combine(self, updates: Sequence[Update], examples: Sequence[float]) -> Vector:
        """Return the mean; sparse updates are added without making them dense."""
        out = np.zeros(updates[0].size, np.float32)
        for update, share in zip(updates, self.shares(examples), strict=True):
            update.add_to(out, share)
        return out

    def shares(self, examples: Sequence[float]) -> list[float]:
        """Return shares in proportion to the examples, or equal ones."""
        weights = np.array(examples if self.weighted else [1] * len(examples), np.float64)
        shares: list[float] = (weights / weights.sum()).tolist()
        return shares


@dataclass(frozen=True)
class MajorityVote:
    """For each weight, the number of positive minus negative signs (Bernstein et al., 2018)."""

    part_id: ClassVar[str] = "majority_vote"

    def shares(self, examples: Sequence[float]) -> list[float]:
        """Return equal shares: every client has one vote."""
        return [1 / len(examples)] * len(examples)

    def combine(self, updates: Sequence[Update], examples: Sequence[float]) -> Vector:
        """Return the vote counts; a tie is zero.

        Raises:
            TypeError: an update is not a ``Signs`` update.
            ValueError: the updates are of different sizes.

        """
        size = updates[0].size
        votes = []
        for update in updates:
            if not isinstance(update, Signs):
                raise TypeError(f"only signs can vote, got {type(update).__name__}")
            if update.size != size:
                raise ValueError(f"got votes on {update.size} weights, expected {size}")
            votes.append(update.bits)
        return count_votes(votes, size).astype(np.float32)
