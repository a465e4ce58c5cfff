"""Clipping of updates to an L2 norm."""

from __future__ import annotations

import numpy as np

from fedtern.core.layout import Vector
from fedtern.core.updates import SPARSE_UPDATES, Update
from fedtern.privacy.noise import Wide


def clip_factor(values: Wide, clip: float) -> float:
    """Return the factor that scales values to an L2 norm of at most ``clip``; at most 1."""
    norm = float(np.linalg.norm(values))
    return clip / norm if norm > clip else 1.0


def clip_vector(vector: Vector, clip: float) -> Wide:
    """Return a vector, scaled to an L2 norm of at most ``clip``."""
    wide = vector.astype(np.float64)
    return wide * clip_factor(wide, clip)


def add_clipped(total: Wide, update: Update, clip: float) -> None:
    """Add a decoded update to ``total``, scaled to an L2 norm of at most ``clip``."""
    if isinstance(update, SPARSE_UPDATES):
        # In float64, so that a sum of many updates has no rounding that depends on one of them.
        values = update.values.astype(np.float64)
        total[update.indices] += clip_factor(values, clip) * values  # indices are distinct
    else:
        total += clip_vector(update.to_dense(), clip)
