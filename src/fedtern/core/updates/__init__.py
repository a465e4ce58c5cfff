"""What compression yields: the forms a change of weights can take.

Every form knows how to add itself to a vector; the sparse ones touch only what they change.
Arrays inside an update belong to it: nobody writes to them after it is made.
"""

from __future__ import annotations

import numpy as np

from fedtern.core.updates.factors import LowRank, Projected
from fedtern.core.updates.levels import Levels
from fedtern.core.updates.plain import Dense, Signs, Sparse, Ternary, segment_of
from fedtern.core.updates.seeded import Masked, Sketched
from fedtern.core.updates.update import Update

__all__ = [
    "POSITIONAL",
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
    "is_empty",
    "largest",
    "named",
    "nbytes",
    "segment_of",
]

POSITIONAL = (Sparse, Ternary)
"""The forms that name the positions they change; a tuple is asked sooner than a union."""


def largest(update: Update) -> float:
    """The largest magnitude in an update."""
    if isinstance(update, Signs):
        return update.step
    if isinstance(update, Ternary):
        return float(max(update.mus.tolist(), default=0.0))
    if isinstance(update, LowRank | Projected) or not hasattr(update, "values"):
        values = update.to_dense()
    else:
        values = update.values
    return float(np.abs(values).max(initial=0.0))


def nbytes(update: Update) -> int:
    """About how much memory an update takes."""
    held = sum(v.nbytes for v in vars(update).values() if isinstance(v, np.ndarray))
    return held + (4 * update.indices.size if isinstance(update, Ternary) else 0)


def named(update: Update) -> int | None:
    """How many positions an update names; None for one that does not name them."""
    return update.indices.size if isinstance(update, POSITIONAL) else None


def is_empty(update: Update) -> bool:
    """Whether an update is known to change nothing."""
    return named(update) == 0
