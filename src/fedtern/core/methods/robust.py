"""Aggregations that tolerate lying clients, for ``Server(aggregate=...)``.

The server's default, a mean of uploads with a cap on each (``NormCap``), costs nothing and works
with every method. These aggregations are stronger or different, and each has a price.
``docs/security.md`` says when each one helps.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.layout import Vector
from fedtern.core.methods.aggregation import Aggregate, Mean
from fedtern.core.updates import Masked, Scaled, Sketched, Sparse, Steps, Ternary, Update, norm

_Combine = Callable[[NDArray[np.float32]], NDArray[np.float32]]

_CHUNK = 1 << 16  # weights that are sorted at a time


@dataclass(frozen=True)
class ClippedMean:
    """The mean of updates whose norms are clipped to a constant.

    It helps if the norm of honest updates is known, and in rounds of one or two uploads, where
    there is no median to compare with. With a constant that is too small, training is slow.

    Args:
        max_norm: the largest norm; longer updates are scaled down to it.
        weighted: whether updates are weighted by their number of examples.

    """

    part_id: ClassVar[str] = "clipped_mean"
    max_norm: float
    weighted: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.max_norm < math.inf:
            raise ValueError(f"max_norm must be positive, got {self.max_norm}")
        object.__setattr__(self, "max_norm", float(self.max_norm))
        object.__setattr__(self, "weighted", bool(self.weighted))

    def combine(self, updates: Sequence[Update], examples: Sequence[float]) -> Vector:
        """Return the mean of the clipped updates."""
        norms = [norm(update) for update in updates]
        clipped = [
            Scaled(update, self.max_norm / length) if length > self.max_norm else update
            for update, length in zip(updates, norms, strict=True)
        ]
        return Mean(self.weighted).combine(clipped, examples)

    def shares(self, examples: Sequence[float]) -> list[float]:
        """Return shares in proportion to the examples, or equal ones."""
        return Mean(self.weighted).shares(examples)


@dataclass(frozen=True)
class CoordinateMedian:
    """For each weight, the median of the updates (Yin et al., 2018).

    It tolerates any values from fewer than half of the clients. Clients with different data have
    different medians: with one class per client, the median ignores what only one client knows.
    It needs the memory of all updates as dense vectors.
    """

    part_id: ClassVar[str] = "coordinate_median"

    def combine(self, updates: Sequence[Update], examples: Sequence[float]) -> Vector:
        """Return the median of each weight; all updates count the same.

        Raises:
            TypeError: the updates are sparse.

        """
        return _by_weight(updates, lambda values: np.median(values, axis=0))

    def shares(self, examples: Sequence[float]) -> list[float]:
        """Return equal shares, for carried tensors."""
        return Mean().shares(examples)


@dataclass(frozen=True)
class TrimmedMean:
    """For each weight, the mean without the smallest and the largest values (Yin et al., 2018).

    Like ``CoordinateMedian``, but closer to the mean of honest clients. It tolerates as many liars
    as it trims on each side.

    Args:
        share: the share of updates to leave out on each side, below 0.5; at least one update.

    """

    part_id: ClassVar[str] = "trimmed_mean"
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise ValueError(f"share must be above 0 and below 0.5, got {self.share}")
        object.__setattr__(self, "share", float(self.share))

    def combine(self, updates: Sequence[Update], examples: Sequence[float]) -> Vector:
        """Return the trimmed mean of each weight; all updates count the same.

        With one or two updates, it is their mean: nothing can be trimmed.

        Raises:
            TypeError: the updates are sparse.

        """
        count = len(updates)
        trimmed = min(max(math.floor(self.share * count), 1), (count - 1) // 2)
        return _by_weight(
            updates, lambda values: np.sort(values, axis=0)[trimmed : count - trimmed].mean(axis=0)
        )

    def shares(self, examples: Sequence[float]) -> list[float]:
        """Return equal shares, for carried tensors."""
        return Mean().shares(examples)


@dataclass(frozen=True)
class Krum:
    """The mean of the updates that are closest to their neighbours (Blanchard et al., 2017).

    For dense methods. It needs at least 2 * liars + 3 uploads per round, and tolerates this many
    liars, whatever they send. It ignores all other updates: on data that differs between clients,
    the model follows the clients in the majority. It computes the distance of every two updates.

    Args:
        liars: the largest number of lying clients in a round.
        chosen: the number of updates in the mean; 1 for Krum, more for Multi-Krum.

    """

    part_id: ClassVar[str] = "krum"
    liars: int = 1
    chosen: int = 1

    def __post_init__(self) -> None:
        for name, least in (("liars", 0), ("chosen", 1)):
            value = operator.index(getattr(self, name))
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
            object.__setattr__(self, name, value)

    @property
    def min_uploads(self) -> int:
        """The smallest number of uploads in a round."""
        return 2 * self.liars + 3

    def combine(self, updates: Sequence[Update], examples: Sequence[float]) -> Vector:
        """Return the mean of the chosen updates; all of them count the same.

        Raises:
            ValueError: there are too few updates.

        """
        count = len(updates)
        if count < self.min_uploads:
            raise ValueError(
                f"Krum with liars={self.liars} needs at least {self.min_uploads} uploads in a"
                f" round, got {count}; wait for more, or use the default aggregation"
            )
        dense = [update.to_dense() for update in updates]
        # Differences, not products: the products of very different values lose all digits.
        distances = np.zeros((count, count))
        for i in range(count):
            for j in range(i):
                difference = dense[i].astype(np.float64) - dense[j]
                distances[i, j] = distances[j, i] = float(np.square(difference).sum())
        # The first one is the distance to itself.
        nearest = np.sort(distances, axis=1)[:, 1 : count - self.liars - 1]
        best = np.argsort(nearest.sum(axis=1), kind="stable")[: self.chosen]
        return Mean().combine([updates[i] for i in sorted(best.tolist())], [1] * best.size)

    def shares(self, examples: Sequence[float]) -> list[float]:
        """Return equal shares, for carried tensors."""
        return Mean().shares(examples)


def min_uploads(aggregate: Aggregate) -> int:
    """Return the smallest number of uploads in a round that an aggregation can combine."""
    return aggregate.min_uploads if isinstance(aggregate, Krum) else 1


def _by_weight(updates: Sequence[Update], combine: _Combine) -> Vector:
    """Combine the values of each weight."""
    sparse = (Sparse, Ternary, Steps, Masked, Sketched)
    for update in updates:
        kind = update.update if isinstance(update, Scaled) else update
        if isinstance(kind, sparse):
            raise TypeError(
                f"the median of {type(kind).__name__} updates is zero for almost every weight; use"
                " a dense method, such as fedavg, or the default aggregation with its cap"
            )
    dense = [update.to_dense() for update in updates]
    out = np.empty(updates[0].size, np.float32)
    for start in range(0, out.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        out[part] = combine(np.stack([vector[part] for vector in dense]))
    return out
