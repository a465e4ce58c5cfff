"""Updates whose values lie on an evenly spaced grid, with one grid per segment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtern.core.layout import Vector
from fedtern.core.updates.plain import Dense

_CHUNK = 1 << 18  # values


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
        out = np.empty(self.size, np.float32)
        for start in range(0, self.size, _CHUNK):
            out[start : start + _CHUNK] = self._part(start, min(start + _CHUNK, self.size))
        return out

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        for start in range(0, self.size, _CHUNK):
            end = min(start + _CHUNK, self.size)
            Dense(self._part(start, end)).add_to(out[start:end], scale)

    def _part(self, start: int, end: int) -> Vector:
        """Return the values from ``start`` to ``end``.

        The values of a large model are computed in parts, which stay in the processor's cache.
        """
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.ends, end, side="left")) + 1
        lengths = np.diff(np.minimum(self.ends[first:last], end), prepend=start)
        units = self.scales[first:last] / np.float32(self.steps)
        return np.repeat(units, lengths) * self.levels[start:end].astype(np.float32)


def bucket_ends(size: int, bucket: int) -> NDArray[np.int64]:
    """Return the ends of segments of ``bucket`` values each; the last one may be shorter."""
    return np.minimum(np.arange(bucket, size + bucket, bucket, dtype=np.int64), size)
