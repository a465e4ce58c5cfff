"""Compressors that approximate each tensor by a low-rank matrix."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.compressors.compressor import Loss, check_finite
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import LowRank, Projected
from fedtern.core.updates.factors import (
    WHOLE,
    MatrixShapes,
    choose_ranks,
    matrix_shapes,
    random_left_factors,
)
from fedtern.core.updates.limits import RankLimits


@dataclass(frozen=True)
class SpectralAtoms:
    """Random singular vectors of each tensor, chosen by singular value (Wang et al., 2018).

    The chosen vectors are divided by their probability, so that the expectation is the tensor. A
    tensor that is not larger than its factors is sent whole.

    Args:
        rank: the number of singular vectors per tensor, on average.

    """

    part_id: ClassVar[str] = "spectral_atoms"
    rank: int
    loss: ClassVar[Loss] = "unbiased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", check_rank(self.rank))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> LowRank:
        """Apply Algorithm 1 of the publication to the singular values of each tensor."""
        check_finite(x, layout)
        shapes = matrix_shapes(layout)
        ranks = []
        parts = [np.empty(0, np.float32)]
        for (rows, columns), wanted, part in _tensors(x, layout, shapes, self.rank):
            if wanted == WHOLE:
                ranks.append(WHOLE)
                parts.append(part)
                continue
            lefts, sizes, rights = np.linalg.svd(
                part.reshape(rows, columns).astype(np.float64), full_matrices=False
            )
            probabilities = atom_probabilities(sizes, self.rank)
            chosen = np.flatnonzero(rng.random(sizes.size) < probabilities)
            scaled = rights[chosen] * (sizes[chosen] / probabilities[chosen])[:, None]
            if chosen.size * (rows + columns) >= rows * columns:
                # The product is smaller than the factors.
                ranks.append(WHOLE)
                values = [lefts[:, chosen] @ scaled]
            else:
                ranks.append(chosen.size)
                values = [lefts.T[chosen], scaled]
            parts += [matrix.reshape(-1).astype(np.float32) for matrix in values]
        return LowRank(shapes, tuple(ranks), np.concatenate(parts))

    def limits(self, layout: Layout) -> RankLimits:
        """Return ranks that a random number of singular vectors practically never exceeds.

        The number is a sum of independent events with mean ``rank``. By Chernoff's bound, it
        exceeds the limit with a probability below 1e-10.
        """
        shapes = matrix_shapes(layout)
        most = self.rank + 30 + math.ceil(10 * math.sqrt(self.rank))
        ranks = (
            wanted if wanted == WHOLE else min(most, *shape)
            for wanted, shape in zip(choose_ranks(shapes, self.rank), shapes, strict=True)
        )
        return RankLimits(shapes, tuple(ranks), exact=False)


@dataclass(frozen=True)
class RandomSubspace:
    """Each tensor as ``A @ B`` with a random ``A``, which is sent as a seed (Konecny et al., 2016).

    The update is the product closest to the vector. A client that trains in this subspace from the
    start (see ``restrict``) loses nothing.

    Args:
        rank: the number of columns of ``A``.

    """

    part_id: ClassVar[str] = "random_subspace"
    rank: int
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", check_rank(self.rank))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Projected:
        """Project onto a new random subspace; its seed is the generator's first number."""
        check_finite(x, layout)
        shapes = matrix_shapes(layout)
        seed = draw_seed(rng)
        ranks = choose_ranks(shapes, self.rank)
        lefts = random_left_factors(shapes, ranks, seed)
        parts = [np.empty(0, np.float32)]
        for left, ((rows, columns), rank, part) in zip(
            lefts, _tensors(x, layout, shapes, self.rank), strict=True
        ):
            if rank == WHOLE:
                parts.append(part)
            else:
                solution = np.linalg.lstsq(left.T, part.reshape(rows, columns), rcond=None)[0]
                parts.append(solution.reshape(-1).astype(np.float32))
        return Projected(shapes, ranks, seed, np.concatenate(parts))

    def limits(self, layout: Layout) -> RankLimits:
        """Return the rank of each tensor."""
        shapes = matrix_shapes(layout)
        return RankLimits(shapes, choose_ranks(shapes, self.rank))

    def restrict(self, gradient: Vector, layout: Layout, rng: np.random.Generator) -> None:
        """Replace a gradient, in place, by the change of ``A @ B`` if only ``B`` is trained."""
        shapes = matrix_shapes(layout)
        seed = draw_seed(rng)
        lefts = random_left_factors(shapes, choose_ranks(shapes, self.rank), seed)
        for left, ((rows, columns), rank, part) in zip(
            lefts, _tensors(gradient, layout, shapes, self.rank), strict=True
        ):
            if rank != WHOLE:
                matrix = part.reshape(rows, columns)
                matrix[...] = left.T @ (left @ matrix)


def atom_probabilities(sizes: NDArray[np.float64], budget: float) -> NDArray[np.float64]:
    """Return the probability of keeping each atom that gives the least variance.

    Algorithm 1 of Wang et al. (2018): the largest atoms are always kept, as long as their
    probability would exceed 1; the others are kept in proportion to their size.

    Args:
        sizes: the sizes of the atoms, descending.
        budget: the number of atoms to keep on average.

    >>> atom_probabilities(np.array([8.0, 2.0, 1.0, 1.0]), 2)
    array([1.  , 0.5 , 0.25, 0.25])
    """
    probabilities = np.ones_like(sizes)
    for certain in range(min(int(budget), sizes.size) + 1):
        rest = sizes[certain:]
        if rest.sum() == 0:
            probabilities[certain:] = 0
            break
        probabilities[certain:] = np.minimum((budget - certain) * rest / rest.sum(), 1)
        if (budget - certain) * rest[0] <= rest.sum():
            break
    return probabilities


def draw_seed(rng: np.random.Generator) -> int:
    """Draw a random seed of eight bytes."""
    return int(rng.integers(0, 1 << 64, dtype=np.uint64))


def check_rank(rank: int) -> int:
    """Return a rank as a Python int.

    Raises:
        ValueError: the rank is not from 1 to 2**15 - 1.

    """
    if not 1 <= operator.index(rank) < 1 << 15:
        raise ValueError(f"rank must be from 1 to {(1 << 15) - 1}, got {rank}")
    return operator.index(rank)


def _tensors(
    x: Vector, layout: Layout, shapes: MatrixShapes, rank: int
) -> list[tuple[tuple[int, int], int, Vector]]:
    """Return the matrix shape, the rank and a flat view of each tensor."""
    parts = [part.reshape(-1) for part in layout.unflatten(x).values()]
    return list(zip(shapes, choose_ranks(shapes, rank), parts, strict=True))
