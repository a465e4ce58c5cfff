"""Compressors that keep the largest values of each block of a tensor."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.compressors.compressor import MAX_MAGNITUDE, Loss, check_finite, float64_mean
from fedtern.core.compressors.sparse import check_rate, count_kept
from fedtern.core.kernels import top_k
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Cosines, Sparse
from fedtern.core.updates.cosines import block_views, cosine_table
from fedtern.core.updates.factors import matrix_shapes
from fedtern.core.updates.limits import EntryLimits


@dataclass(frozen=True)
class SparsePalette:
    """The largest values of each chunk, rounded to four values per tensor (two bits).

    Sarfi et al. (2025): top-k within chunks of a tensor, so that no part of it is starved.

    Args:
        p: the share of values that are kept: max(floor(size p), 1) of each chunk.
        chunk: the number of consecutive values in a chunk; the last one of a tensor may be shorter.

    >>> x = np.float32([5, -1, 3, 0.1, 0, -4])
    >>> SparsePalette(5 / 6).compress(x, Layout.flat(6), np.random.default_rng(0)).to_dense()
    array([ 4. , -1. ,  4. ,  0.1,  0. , -4. ], dtype=float32)
    """

    part_id: ClassVar[str] = "sparse_palette"
    p: float
    chunk: int = 4096
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_rate(self.p))
        object.__setattr__(self, "chunk", operator.index(self.chunk))
        if not 1 <= self.chunk < 1 << 31:
            raise ValueError(f"chunk must be from 1 to {(1 << 31) - 1}, got {self.chunk}")

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Sparse:
        """Keep and round the largest values; zeros are never kept."""
        check_finite(x, layout)
        indices = [np.empty(0, np.int64)]
        values = [np.empty(0, np.float32)]
        start = 0
        for end in layout.ends.tolist():
            kept = self._select(x, start, end)
            indices.append(kept)
            values.append(_round_to_four(x[kept]))
            start = end
        return Sparse(x.size, np.concatenate(indices), np.concatenate(values))

    def _select(self, x: Vector, start: int, end: int) -> NDArray[np.int64]:
        """Return the positions of the largest values of each chunk of a tensor."""
        found = [np.empty(0, np.int64)]
        for first in range(start, end, self.chunk):
            part = x[first : min(first + self.chunk, end)]
            found.append(first + top_k(part, count_kept(part.size, self.p)))
        return np.concatenate(found)

    def limits(self, layout: Layout) -> EntryLimits:
        """Return limits of the number of non-zeros in each tensor."""
        most = []
        for size in np.diff(layout.ends, prepend=0).tolist():
            whole, rest = divmod(size, self.chunk)
            chunks = whole * min(count_kept(self.chunk, self.p), self.chunk)
            most.append(chunks + (min(count_kept(rest, self.p), rest) if rest else 0))
        return EntryLimits(np.array(most, np.int64), layout.ends)


def _round_to_four(values: Vector) -> Vector:
    """Replace values by the mean of their group: by sign, and below or above the mean magnitude."""
    magnitudes = np.abs(values)
    large = magnitudes > float64_mean(magnitudes)
    positive = values > 0
    out = np.empty_like(values)
    for group in (positive & large, positive & ~large, ~positive & large, ~positive & ~large):
        out[group] = float64_mean(values[group])
    return out


@dataclass(frozen=True)
class CosineTopK:
    """The largest coefficients of a cosine transform of each block (Peng et al., 2024).

    A tensor is a matrix of its first axis by all others. Its blocks have the largest numbers of
    rows and columns up to 64 that divide it.

    Args:
        k: the number of coefficients that are kept in each block.

    """

    part_id: ClassVar[str] = "cosine_top_k"
    k: int = 32
    loss: ClassVar[Loss] = "biased"

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", operator.index(self.k))
        if not 1 <= self.k <= 4096:
            raise ValueError(f"k must be from 1 to 4096, got {self.k}")

    def compress(self, x: Vector, layout: Layout, rng: np.random.Generator) -> Cosines:
        """Transform each block and keep its largest coefficients; zeros are never kept."""
        check_finite(x, layout)
        shapes = matrix_shapes(layout)
        kept = np.zeros(x.size, np.float32)
        for source, target in zip(block_views(x, shapes), block_views(kept, shapes), strict=True):
            _, _, high, wide = source.shape
            coefficients = cosine_table(high) @ source @ cosine_table(wide).T
            np.clip(coefficients, -MAX_MAGNITUDE, MAX_MAGNITUDE, out=coefficients)
            flat = coefficients.reshape(-1, high * wide)
            if self.k < flat.shape[1]:
                dropped = np.argpartition(np.abs(flat), -self.k, axis=1)[:, : -self.k]
                np.put_along_axis(flat, dropped, np.float32(0), axis=1)
            target[...] = flat.reshape(coefficients.shape)
        indices = np.flatnonzero(kept)
        return Cosines(shapes, indices, kept[indices])

    def limits(self, layout: Layout) -> EntryLimits:
        """Return limits of the number of coefficients in each tensor."""
        most = []
        for blocks in block_views(np.empty(layout.size, np.float32), matrix_shapes(layout)):
            _, _, high, wide = blocks.shape
            most.append(blocks.size // (high * wide) * min(self.k, high * wide))
        return EntryLimits(np.array(most, np.int64), layout.ends)
