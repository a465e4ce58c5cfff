"""Updates: the result of compression, in several forms.

Every update can add itself to a vector; sparse updates touch only the positions they change. The
arrays in an update belong to it: do not write to them.
"""

from __future__ import annotations

import math

import numpy as np

from fedtern.core.layout import Vector
from fedtern.core.updates.cosines import Cosines
from fedtern.core.updates.factors import LowRank, Projected
from fedtern.core.updates.levels import Levels
from fedtern.core.updates.limits import Limits, NoLimits
from fedtern.core.updates.plain import Dense, Signs, Sparse, Ternary, find_segments
from fedtern.core.updates.scaled import Scaled
from fedtern.core.updates.seeded import Masked, Rotated, Sketched
from fedtern.core.updates.steps import Steps
from fedtern.core.updates.update import Update

__all__ = [
    "SPARSE_UPDATES",
    "Cosines",
    "Dense",
    "Levels",
    "Limits",
    "LowRank",
    "Masked",
    "NoLimits",
    "Projected",
    "Rotated",
    "Scaled",
    "Signs",
    "Sketched",
    "Sparse",
    "Steps",
    "Ternary",
    "Update",
    "count_entries",
    "estimate_nbytes",
    "find_segments",
    "is_empty",
    "max_magnitude",
    "norm",
]

SPARSE_UPDATES = (Sparse, Ternary, Steps)
"""Updates that store their positions. A tuple, because ``isinstance`` is slower with a union."""


_CHUNK = 1 << 20  # values


def max_magnitude(update: Update) -> float:
    """Return the largest magnitude in an update."""
    if isinstance(update, Signs):
        return update.step
    if isinstance(update, Ternary):
        return float(max(update.mus.tolist(), default=0.0))
    return float(np.abs(_values(update)).max(initial=0.0))


def norm(update: Update) -> float:
    """Return the Euclidean norm of an update; of a ternary one, mu * sqrt(k)."""
    if isinstance(update, Signs):
        return update.step * math.sqrt(update.size)
    if isinstance(update, Ternary):
        if update.ends is None:  # the common case, without arrays
            return float(update.mus[0]) * math.sqrt(update.indices.size)
        cuts = [0, *np.searchsorted(update.indices, update.ends).tolist()]
        squares = np.square(update.mus, dtype=np.float64) * np.diff(cuts)
        return math.sqrt(float(squares.sum()))
    values = _values(update)
    # In parts, so that no float64 copy of a large model is made.
    total = 0.0
    for start in range(0, values.size, _CHUNK):
        total += float(np.square(values[start : start + _CHUNK], dtype=np.float64).sum())
    return math.sqrt(total)


def _values(update: Update) -> Vector:
    """Return all values of an update that are not zero, and possibly zeros."""
    if isinstance(update, LowRank | Projected) or not hasattr(update, "values"):
        return update.to_dense()
    values: Vector = update.values
    return values


def estimate_nbytes(update: Update) -> int:
    """Estimate how much memory an update takes, in bytes."""
    nbytes = sum(v.nbytes for v in vars(update).values() if isinstance(v, np.ndarray))
    if isinstance(update, Ternary):
        nbytes += 4 * update.indices.size  # its cached ``values``
    if isinstance(update, Rotated | Cosines):
        nbytes += 4 * update.size  # its cached ``values``
    if isinstance(update, Steps):
        nbytes += 8 * update.indices.size  # its cached ``exact_values``
    return nbytes


def count_entries(update: Update) -> int | None:
    """Return the number of positions a sparse update stores; None for other updates."""
    return update.indices.size if isinstance(update, SPARSE_UPDATES) else None


def is_empty(update: Update) -> bool:
    """Whether an update is sparse and changes no position."""
    return count_entries(update) == 0
