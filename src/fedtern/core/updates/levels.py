"""Updates whose values lie on an evenly spaced grid, with one grid per segment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtern.core.layout import Vector
from fedtern.core.updates.plain import Dense


@dataclass(frozen=True, eq=False)
class Levels:
    """For every weight, ``level / steps`` times the scale of its segment.

    >>> Levels(4, np.int32([2, 0, -1, 1]), np.float32([3, 8]), np.array([2, 4]), 2).to_dense()
    array([ 3.,  0., -4.,  4.], dtype=float32)
    """

    size: int
    levels: NDArray[np.int32]  # from -steps to steps
    scales: Vector  # one per segment, not negative
    ends: NDArray[np.int64]  # one past the last position of each segment
    steps: int

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        lengths = np.diff(self.ends, prepend=0)
        units = self.scales / np.float32(self.steps)
        return np.repeat(units, lengths) * self.levels.astype(np.float32)

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        Dense(self.to_dense()).add_to(out, scale)


def bucket_ends(size: int, bucket: int) -> NDArray[np.int64]:
    """Return the ends of segments of ``bucket`` values each; the last one may be shorter."""
    return np.minimum(np.arange(bucket, size + bucket, bucket, dtype=np.int64), size)
