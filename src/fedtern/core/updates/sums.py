"""Several rounds' updates merged into one that leads to exactly the same weights.

Float addition is not associative: adding the sum P^(s) of s updates does not give the same bits as
adding the updates one by one. The two forms in this module do. ``UpdateSequence`` keeps the values
of each changed position in round order (positions do not affect each other). ``SignCounts`` counts
signs; the replica computes the weights from the counts. ``Steps`` are whole multiples of powers of
two, whose sum is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels import count_votes, scatter_add, sort_entries
from fedtern.core.layout import Vector
from fedtern.core.updates import Signs, Sparse, Steps, Ternary, Update, is_empty
from fedtern.core.updates.steps import sum_steps

MAX_UPDATES = 1 << 24
"""The largest number of updates that can be merged into one."""


@dataclass(frozen=True, eq=False)
class UpdateSequence:
    """The entries of consecutive sparse updates, sorted by position and then by update.

    An entry is the change of one position by one update.
    """

    size: int
    num_updates: int
    positions: NDArray[np.int64]  # of each entry, ascending
    update_indices: NDArray[np.int32]  # of each entry, ascending within a position
    values: Vector
    mus: Vector | None = None  # magnitudes by update and segment, if all updates are ternary

    def to_dense(self) -> Vector:
        """Return the result of adding the updates to zeros, one by one."""
        out = np.zeros(self.size, np.float32)
        self.add_to(out)
        return out

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Add the updates to ``out``, with the same bits as one by one."""
        scatter_add(out, self.positions, self.values, np.float32(scale))


@dataclass(frozen=True, eq=False)
class SignCounts:
    """The sum of consecutive sign updates with the same step: how often up minus how often down."""

    size: int
    num_updates: int
    counts: NDArray[np.int32]  # from -num_updates to num_updates, odd if num_updates is odd
    step: float

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        return (np.float64(self.step) * self.counts).astype(np.float32)

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``; a ``Replica`` adds counts instead, which is exact."""
        out += np.float32(scale) * self.to_dense()


MergedUpdate = UpdateSequence | SignCounts | Steps


def merge_updates(updates: Sequence[Update]) -> MergedUpdate | None:
    """Merge updates into one that has the same effect on a replica as all of them in order.

    Returns:
        The merged update. None if there is none: all updates are empty, they are not of one kind,
        or they have more entries than the model has parameters (steps can always be summed).

    """
    updates = [u for u in updates if not is_empty(u)]
    signs = [u for u in updates if isinstance(u, Signs)]
    if signs:
        same_step = len({u.step for u in signs}) == 1
        return _count_signs(signs) if same_step and len(signs) == len(updates) else None
    steps = [u for u in updates if isinstance(u, Steps)]
    if steps:
        return sum_steps(steps) if len(steps) == len(updates) else None
    sparse = [u for u in updates if isinstance(u, Sparse | Ternary)]
    if not sparse or len(sparse) < len(updates):
        return None
    ends = list(accumulate([u.indices.size for u in sparse]))
    # Readers allocate no more entries than the model has parameters.
    return _merge_sparse(sparse, ends) if ends[-1] <= sparse[0].size else None


def _count_signs(updates: Sequence[Signs]) -> SignCounts:
    size = updates[0].size
    counts = count_votes([update.bits for update in updates], size)
    return SignCounts(size, len(updates), counts, updates[0].step)


def _merge_sparse(updates: Sequence[Sparse | Ternary], ends: Sequence[int]) -> UpdateSequence:
    """Sort the entries of all updates; ``ends`` is one past the last entry of each update."""
    num_updates = len(updates)
    size = updates[0].size
    count = ends[-1]
    indices = np.concatenate([u.indices for u in updates])
    values = np.concatenate([u.values for u in updates])
    positions = np.empty(count, np.int64)
    update_indices = np.empty(count, np.int32)
    sorted_values = np.empty(count, np.float32)
    sort_entries(
        indices,
        values,
        np.array(ends, np.int64),
        size,
        positions,
        update_indices,
        sorted_values,
    )
    mus = None
    ternary = [u for u in updates if isinstance(u, Ternary)]
    if len(ternary) == num_updates and len({u.mus.size for u in ternary}) == 1:
        mus = np.concatenate([u.mus for u in ternary]).reshape(num_updates, -1)
    return UpdateSequence(size, num_updates, positions, update_indices, sorted_values, mus)
