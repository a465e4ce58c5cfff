"""Updates times a factor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtern.core.layout import Vector
from fedtern.core.updates.update import Update


@dataclass(frozen=True, eq=False)
class Scaled:
    """Another update times a factor."""

    update: Update
    factor: float

    @property
    def size(self) -> int:
        """The length of the vector that the update changes."""
        return self.update.size

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        return np.float32(self.factor) * self.update.to_dense()

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        self.update.add_to(out, scale * self.factor)
