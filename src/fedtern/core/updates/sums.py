"""Several rounds' updates as one, in a form that adds up to the same bits.

Float addition is not associative: a client that adds the sum P^(s) of what it missed does not
arrive where one did that added s updates in turn. These two forms do: ``UpdateSequence``
keeps each touched position's values in round order (positions are independent of one another),
``SignCounts`` counts signs and leaves the arithmetic to whoever holds the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels import count_votes, scatter_add, sort_entries
from fedtern.core.layout import Vector
from fedtern.core.updates import POSITIONAL, Signs, Sparse, Ternary, Update, is_empty

MOST_TURNS = 1 << 24
"""How many updates one sum stands for, at most."""


@dataclass(frozen=True, eq=False)
class UpdateSequence:
    """Every touch of ``turns`` sparse updates, by position and then by turn."""

    size: int
    turns: int
    positions: NDArray[np.int64]  # ascending
    turn: NDArray[np.int32]  # of each touch, ascending where they share a position
    values: Vector
    mus: Vector | None = None  # [turn, segment] magnitudes, where all the updates are ternary

    def to_dense(self) -> Vector:
        """The change as a new vector: what it does to zeros."""
        out = np.zeros(self.size, np.float32)
        self.add_to(out)
        return out

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Add the updates to ``out`` as if one by one."""
        scatter_add(out, self.positions, self.values, np.float32(scale))


@dataclass(frozen=True, eq=False)
class SignCounts:
    """How often ``turns`` sign updates of one step went up, less how often they went down."""

    size: int
    turns: int
    counts: NDArray[np.int32]  # in [-turns, turns], of the parity of turns
    step: float

    def to_dense(self) -> Vector:
        """The change as a new vector."""
        return (np.float64(self.step) * self.counts).astype(np.float32)

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """``out += scale * self``; a ``Replica`` counts instead, which keeps every bit."""
        out += np.float32(scale) * self.to_dense()


def merge(updates: Sequence[Update]) -> UpdateSequence | SignCounts | None:
    """One update that does to a replica what these do in turn; None where there is none."""
    updates = [u for u in updates if not is_empty(u)]
    if signs := [u for u in updates if isinstance(u, Signs)]:
        same_step = len({u.step for u in signs}) == 1
        return _tally(signs) if same_step and len(signs) == len(updates) else None
    sparse = [u for u in updates if isinstance(u, POSITIONAL)]
    if not sparse or len(sparse) < len(updates):
        return None
    ends = list(accumulate([u.indices.size for u in sparse]))
    # A reader allocates by the layout: more touches than parameters are replayed instead.
    return _series(sparse, ends) if ends[-1] <= sparse[0].size else None


def _tally(updates: Sequence[Signs]) -> SignCounts:
    size, turns = updates[0].size, len(updates)
    counts = count_votes([update.bits for update in updates], size)
    return SignCounts(size, turns, counts, updates[0].step)


def _series(updates: Sequence[Sparse | Ternary], ends: Sequence[int]) -> UpdateSequence:
    """The touches of several updates, ``ends`` one past each update's among all of them."""
    turns, size, count = len(updates), updates[0].size, ends[-1]
    touches = np.empty(count, np.int64), np.empty(count, np.int32), np.empty(count, np.float32)
    indices = np.concatenate([u.indices for u in updates])
    values = np.concatenate([u.values for u in updates])
    sort_entries(indices, values, np.array(ends, np.int64), size, *touches)
    ternary = [u for u in updates if isinstance(u, Ternary)]
    same = len(ternary) == turns and len({u.mus.size for u in ternary}) == 1
    mus = np.concatenate([u.mus for u in ternary]).reshape(turns, -1) if same else None
    return UpdateSequence(size, turns, *touches, mus)
