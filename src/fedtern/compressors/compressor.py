"""What a compressor promises, and the one that loses nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedtern.kernels import first_unsafe
from fedtern.layout import Layout, Vector
from fedtern.updates import Dense, Update

LARGEST = 2.0**100  # no sum of messages comes near overflow
Loss = Literal["none", "unbiased", "biased"]


class Compressor(Protocol):
    """Makes updates.

    ``loss`` tells how they differ from what they were made from: not at all, only by chance (their
    expectation is equal to it), or in one direction.
    """

    loss: ClassVar[Loss]

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Update:
        """An update close to ``x``; refuses values that are not finite, naming the tensor."""
        ...


@runtime_checkable
class Restricting(Protocol):
    """A compressor that sends one random subspace, in which clients can train from the start."""

    def restrict(self, gradient: Vector, layout: Layout, rng: np.random.Generator) -> None:
        """Make a gradient one within the subspace that the same generator leads to; in place."""
        ...


@dataclass(frozen=True)
class Identity:
    """Everything, as it is."""

    loss: ClassVar[Loss] = "none"

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Dense:
        """The vector itself, once every value is known to be finite."""
        check_finite(x, layout)
        return Dense(x)


def check_finite(x: Vector, layout: Layout) -> None:
    """Refuse NaN, infinity and magnitudes beyond 2**100, naming the tensor."""
    if (bad := first_unsafe(x)) >= 0:
        raise layout.refuse(bad, float(x[bad]))


def check_kept(values: Vector, kept: NDArray[np.int64], layout: Layout) -> None:
    """Like ``check_finite`` on a vector, given its largest values: a bad one is among them."""
    if (bad := first_unsafe(values)) >= 0:
        raise layout.refuse(int(kept[bad]), float(values[bad]))


def mean_of(values: Vector) -> np.float32:
    """The mean, added up in float64; zero where there is nothing."""
    return np.float32(values.mean(dtype=np.float64)) if values.size else np.float32(0)
