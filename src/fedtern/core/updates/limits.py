"""Limits: the updates that a method can make for a model.

A server checks each upload against the limits of its method. So a client cannot name more weights,
or send larger matrices, than the method allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import DecodeError
from fedtern.core.updates.cosines import Cosines
from fedtern.core.updates.factors import (
    WHOLE,
    LowRank,
    MatrixShapes,
    Projected,
    count_right_values,
    count_values,
)
from fedtern.core.updates.levels import Levels
from fedtern.core.updates.plain import Signs, Sparse, Ternary
from fedtern.core.updates.seeded import Masked, Rotated, Sketched
from fedtern.core.updates.steps import Steps
from fedtern.core.updates.update import Update


class Limits(Protocol):
    """The updates that a compressor can make for a layout."""

    def check(self, update: Update) -> None:
        """Check that the compressor can have made an update.

        Raises:
            DecodeError: it cannot.

        """
        ...


@dataclass(frozen=True)
class NoLimits:
    """Every update of the layout's size is possible."""

    def check(self, update: Update) -> None:
        """Accept every update."""


@dataclass(frozen=True, eq=False)
class EntryLimits:
    """A limited number of non-zeros in each segment, of any magnitude or of a given one.

    Attributes:
        most: the largest number of non-zeros in each segment.
        ends: one past the last position of each segment.
        magnitude: the magnitude of all non-zeros, or None.

    """

    most: NDArray[np.int64]
    ends: NDArray[np.int64]
    magnitude: float | None = None

    @property
    def total(self) -> int:
        """The largest number of non-zeros in the whole update."""
        return int(self.most.sum())

    def check(self, update: Update) -> None:
        """Check the number of non-zeros, and their magnitude if it is fixed."""
        if not isinstance(update, Sparse | Ternary | Steps | Cosines):
            raise DecodeError(f"expected a sparse update, got {type(update).__name__}")
        count = update.indices.size
        if count > self.total:
            raise DecodeError(
                f"the update has {count} non-zeros, the method sends at most {self.total}"
            )
        if self.ends.size > 1:
            counts = np.diff(np.searchsorted(update.indices, self.ends), prepend=0)
            if (beyond := np.flatnonzero(counts > self.most)).size:
                segment = int(beyond[0])
                raise DecodeError(
                    f"tensor {segment} has {counts[segment]} non-zeros, the method sends at most"
                    f" {self.most[segment]}"
                )
        if self.magnitude is not None and isinstance(update, Ternary) and count:
            check_magnitude(float(update.mus.max()), self.magnitude)


@dataclass(frozen=True)
class SignLimits:
    """Signs of a given magnitude."""

    magnitude: float

    def check(self, update: Update) -> None:
        """Check the magnitude."""
        if not isinstance(update, Signs):
            raise DecodeError(f"expected signs, got {type(update).__name__}")
        check_magnitude(update.step, self.magnitude)


@dataclass(frozen=True, eq=False)
class LevelLimits:
    """A grid with a limited number of levels and with given segments.

    Attributes:
        most_steps: the largest number of levels between zero and the scale.
        ends: one past the last position of each segment.
        exact: whether the number of levels is always the largest one.

    """

    most_steps: int
    ends: NDArray[np.int64]
    exact: bool = True

    def check(self, update: Update) -> None:
        """Check the number of levels and the segments."""
        if not isinstance(update, Levels):
            raise DecodeError(f"expected levels, got {type(update).__name__}")
        if update.steps != self.most_steps if self.exact else update.steps > self.most_steps:
            most = "" if self.exact else "at most "
            raise DecodeError(
                f"the update has {update.steps} levels, the method sends {most}{self.most_steps}"
            )
        if not np.array_equal(update.ends, self.ends):
            raise DecodeError(
                f"the update has {update.ends.size} segments, the method sends {self.ends.size} of"
                f" {self.ends[0] if self.ends.size else 0} values"
            )


@dataclass(frozen=True)
class RankLimits:
    """Matrices of limited rank.

    Attributes:
        shapes: rows and columns of each tensor.
        ranks: the largest rank of each tensor; WHOLE if it is never sent as factors.
        exact: whether every tensor always has this rank.

    """

    shapes: MatrixShapes
    ranks: tuple[int, ...]
    exact: bool = True

    def check(self, update: Update) -> None:
        """Check the rank of each tensor."""
        if not isinstance(update, LowRank | Projected):
            raise DecodeError(f"expected matrices of low rank, got {type(update).__name__}")
        for number, (rank, shape) in enumerate(zip(update.ranks, self.shapes, strict=True)):
            if not self._allows(rank, self.ranks[number], shape):
                sent = "as a whole" if rank == WHOLE else f"with rank {rank}"
                most = self.ranks[number]
                allowed = "as a whole" if most == WHOLE else f"with rank {most}"
                raise DecodeError(
                    f"tensor {number} is sent {sent}, the method sends it"
                    f" {'' if self.exact else 'at most '}{allowed}"
                )

    def _allows(self, rank: int, most: int, shape: tuple[int, int]) -> bool:
        if rank == most:
            return True
        if self.exact or most == WHOLE:
            return False
        rows, columns = shape
        # Factors that are not smaller than the tensor are sent as a whole.
        return most * (rows + columns) >= rows * columns if rank == WHOLE else rank < most

    def count_values(self, *, right_only: bool) -> int:
        """Return the largest number of values in an update.

        Args:
            right_only: whether left factors follow from a seed.

        """
        count = count_right_values if right_only else count_values
        return sum(
            # The whole tensor, if the factors may be as large.
            min(count(shape, rank), count(shape, WHOLE))
            for shape, rank in zip(self.shapes, self.ranks, strict=True)
        )


@dataclass(frozen=True)
class SeededLimits:
    """A given number of values, chosen or rotated by a seed, with a given number of bits each.

    Attributes:
        count: the number of values.
        bits: the number of bits per value; None for float32.

    """

    count: int
    bits: int | None = None

    def check(self, update: Update) -> None:
        """Check the number of values and of bits."""
        if isinstance(update, Sketched):
            count, bits = update.kept, update.bits
        elif isinstance(update, Masked):
            count, bits = update.values.size, None
        elif isinstance(update, Rotated):
            count, bits = update.size, update.bits
        else:
            raise DecodeError(f"expected values by seed, got {type(update).__name__}")
        if (count, bits) != (self.count, self.bits):
            raise DecodeError(
                f"the update has {count} values of {bits or 32} bits, the method sends"
                f" {self.count} of {self.bits or 32}"
            )


def check_magnitude(magnitude: float, expected: float) -> None:
    """Raise a ``DecodeError`` unless a magnitude is the only one that the method sends."""
    if magnitude != expected:
        raise DecodeError(f"the update has magnitude {magnitude}, the method sends {expected} only")
