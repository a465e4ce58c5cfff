"""Updates: the result of compression, in several forms.

Every update can add itself to a vector; sparse updates touch only the positions they change. The
arrays in an update belong to it: do not write to them.
"""

from __future__ import annotations

import numpy as np

from fedtern.core.updates.factors import LowRank, Projected
from fedtern.core.updates.levels import Levels
from fedtern.core.updates.plain import Dense, Signs, Sparse, Ternary, find_segments
from fedtern.core.updates.seeded import Masked, Sketched
from fedtern.core.updates.update import Update

__all__ = [
    "SPARSE_UPDATES",
    "Dense",
    "Levels",
    "LowRank",
    "Masked",
    "Projected",
    "Signs",
    "Sketched",
    "Sparse",
    "Ternary",
    "Update",
    "count_entries",
    "estimate_nbytes",
    "find_segments",
    "is_empty",
    "max_magnitude",
]

SPARSE_UPDATES = (Sparse, Ternary)
"""Updates that store their positions. A tuple, because ``isinstance`` is slower with a union."""


def max_magnitude(update: Update) -> float:
    """Return the largest magnitude in an update."""
    if isinstance(update, Signs):
        return update.step
    if isinstance(update, Ternary):
        return float(max(update.mus.tolist(), default=0.0))
    if isinstance(update, LowRank | Projected) or not hasattr(update, "values"):
        values = update.to_dense()
    else:
        values = update.values
    return float(np.abs(values).max(initial=0.0))


def estimate_nbytes(update: Update) -> int:
    """Estimate how much memory an update takes, in bytes."""
    nbytes = sum(v.nbytes for v in vars(update).values() if isinstance(v, np.ndarray))
    if isinstance(update, Ternary):
        nbytes += 4 * update.indices.size  # its cached ``values``
    return nbytes


def count_entries(update: Update) -> int | None:
    """Return the number of positions a sparse update stores; None for other updates."""
    return update.indices.size if isinstance(update, SPARSE_UPDATES) else None


def is_empty(update: Update) -> bool:
    """Whether an update is sparse and changes no position."""
    return count_entries(update) == 0
