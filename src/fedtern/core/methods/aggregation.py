"""How a server makes one delta out of a cohort's updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedtern.core.kernels import count_votes
from fedtern.core.layout import Vector
from fedtern.core.updates import Signs, Update


class Aggregate(Protocol):
    """Combines updates; ``examples`` says how many each one was trained on."""

    part_id: ClassVar[str]

    def combine(self, updates: Sequence[Update], examples: Sequence[int]) -> Vector:
        """A new vector from at least one update. The order of updates may matter to its bits."""
        ...


@dataclass(frozen=True)
class Mean:
    """The mean of the updates, each counted once (Algorithm 2) or by its examples (FedAvg)."""

    part_id: ClassVar[str] = "mean"
    weighted: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "weighted", bool(self.weighted))

    def combine(self, updates: Sequence[Update], examples: Sequence[int]) -> Vector:
        """Sparse updates are added without being made dense."""
        shares = np.array(examples if self.weighted else [1] * len(updates), np.float64)
        out = np.zeros(updates[0].size, np.float32)
        for update, share in zip(updates, shares / shares.sum(), strict=True):
            update.add_to(out, float(share))
        return out


@dataclass(frozen=True)
class MajorityVote:
    """Votes up less votes down, for each weight (Bernstein et al., 2018)."""

    part_id: ClassVar[str] = "majority_vote"

    def combine(self, updates: Sequence[Update], examples: Sequence[int]) -> Vector:
        """The sign of the result is the majority's; zero is a tie."""
        votes, size = [], updates[0].size
        for update in updates:
            if not isinstance(update, Signs):
                raise TypeError(f"only signs can vote, got {type(update).__name__}")
            if update.size != size:
                raise ValueError(f"got votes on {update.size} weights and on {size}")
            votes.append(update.bits)
        return count_votes(votes, size).astype(np.float32)
