"""Each tensor as a matrix of low rank."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.compressors.compressor import Loss, check_finite
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import LowRank, Projected
from fedtern.core.updates.factors import WHOLE, choose_ranks, matrix_shapes, random_left_factors


@dataclass(frozen=True)
class SpectralAtoms:
    """Some singular vectors of each tensor, drawn by their singular values (Wang et al., 2018).

    ``rank`` is how many are sent on average; what is drawn is scaled up by its chance, so that the
    expectation is the tensor itself. A tensor no longer than its factors would be is sent whole.
    """

    part_id: ClassVar[str] = "spectral_atoms"
    rank: int
    loss: ClassVar[Loss] = "unbiased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", check_rank(self.rank))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> LowRank:
        """Algorithm 1 of the publication on the singular values of each tensor."""
        check_finite(x, layout)
        sides = matrix_shapes(layout)
        ranks, parts = [], [np.empty(0, np.float32)]
        for (rows, columns), wanted, part in _tensors(x, layout, sides, self.rank):
            if wanted == WHOLE:
                ranks.append(WHOLE)
                parts.append(part)
                continue
            lefts, sizes, rights = np.linalg.svd(
                part.reshape(rows, columns).astype(np.float64), full_matrices=False
            )
            chances = atom_chances(sizes, self.rank)
            drawn = np.flatnonzero(rng.random(sizes.size) < chances)
            scaled = rights[drawn] * (sizes[drawn] / chances[drawn])[:, None]
            factors = [lefts.T[drawn], scaled]
            if drawn.size * (rows + columns) >= rows * columns:  # their product is shorter
                ranks.append(WHOLE)
                factors = [lefts[:, drawn] @ scaled]
            else:
                ranks.append(drawn.size)
            parts += [factor.reshape(-1).astype(np.float32) for factor in factors]
        return LowRank(sides, tuple(ranks), np.concatenate(parts))


@dataclass(frozen=True)
class RandomSubspace:
    """Each tensor as ``A @ B`` with a random ``A`` that is sent as a seed (Konecny et al., 2016).

    What is sent is the nearest such product; a client that trains in this subspace from the
    beginning (``restrict``) loses nothing by it.
    """

    part_id: ClassVar[str] = "random_subspace"
    rank: int
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", check_rank(self.rank))

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Projected:
        """A new subspace each time, by the generator's first number."""
        check_finite(x, layout)
        sides, seed = matrix_shapes(layout), draw_seed(rng)
        ranks = choose_ranks(sides, self.rank)
        parts = [np.empty(0, np.float32)]
        lefts = random_left_factors(sides, ranks, seed)
        for left, ((rows, columns), rank, part) in zip(
            lefts, _tensors(x, layout, sides, self.rank), strict=True
        ):
            if rank == WHOLE:
                parts.append(part)
            else:
                solved = np.linalg.lstsq(left.T, part.reshape(rows, columns), rcond=None)[0]
                parts.append(solved.reshape(-1).astype(np.float32))
        return Projected(sides, ranks, seed, np.concatenate(parts))

    def restrict(self, gradient: Vector, layout: Layout, rng: np.random.Generator) -> None:
        """What a step along this gradient does to ``B``, as a gradient of ``A @ B``; in place."""
        sides, seed = matrix_shapes(layout), draw_seed(rng)
        lefts = random_left_factors(sides, choose_ranks(sides, self.rank), seed)
        for left, ((rows, columns), rank, part) in zip(
            lefts, _tensors(gradient, layout, sides, self.rank), strict=True
        ):
            if rank != WHOLE:
                matrix = part.reshape(rows, columns)
                matrix[...] = left.T @ (left @ matrix)


def atom_chances(sizes: NDArray[np.float64], budget: float) -> NDArray[np.float64]:
    """With which chance to keep each atom: least variance with ``budget`` kept on average.

    Algorithm 1 of Wang et al. (2018): the largest, as long as their chance would pass 1, are kept
    for certain, and the others in proportion to their size. ``sizes`` are descending.

    >>> atom_chances(np.array([8.0, 2.0, 1.0, 1.0]), 2)
    array([1.  , 0.5 , 0.25, 0.25])
    """
    chances = np.ones_like(sizes)
    for certain in range(min(int(budget), sizes.size) + 1):
        rest = sizes[certain:]
        if rest.sum() == 0:
            chances[certain:] = 0
            break
        chances[certain:] = np.minimum((budget - certain) * rest / rest.sum(), 1)
        if (budget - certain) * rest[0] <= rest.sum():
            break
    return chances


def draw_seed(rng: np.random.Generator) -> int:
    """A seed that fits eight bytes."""
    return int(rng.integers(0, 1 << 64, dtype=np.uint64))


def check_rank(rank: int) -> int:
    """A rank as a plain number; refuse one below 1."""
    if not 1 <= operator.index(rank) < 1 << 15:
        raise ValueError(f"rank must be from 1 to {(1 << 15) - 1}, got {rank}")
    return operator.index(rank)


def _tensors(
    x: Vector, layout: Layout, sides: tuple[tuple[int, int], ...], rank: int
) -> list[tuple[tuple[int, int], int, Vector]]:
    parts = [part.reshape(-1) for part in layout.unflatten(x).values()]
    return list(zip(sides, choose_ranks(sides, rank), parts, strict=True))
