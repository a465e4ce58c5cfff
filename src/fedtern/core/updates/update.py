"""Interface of updates."""

from __future__ import annotations

from typing import Protocol

from fedtern.core.layout import Vector


class Update(Protocol):
    """A change of ``size`` weights."""

    @property
    def size(self) -> int:
        """The length of the vector that the update changes."""
        ...

    def to_dense(self) -> Vector:
        """Return the update as a new vector."""
        ...

    def add_to(self, out: Vector, scale: float = 1.0) -> None:
        """Compute ``out += scale * self``, in place."""
        ...
