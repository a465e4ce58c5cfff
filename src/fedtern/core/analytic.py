"""Analytic bit counts: the formulas of the publications, for comparison with measured bytes.

A client sends one update per round, and receives one update for each round that it missed (for
signSGD log2(2 s + 1) bits per parameter, for exact updates one model). If a publication gives only
a bound, the bound is used. If the number of values depends on the data, the actual number is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from fedtern.core.codecs.golomb import golomb_width
from fedtern.core.compressors import (
    CosineTopK,
    RandomMask,
    RandomSubspace,
    RotatedCentroids,
    ScaledSign,
    Sign,
    Sketch,
    SparseBinary,
    SparsePalette,
    SparseSteps,
    SparseTernary,
    SpectralAtoms,
    StochasticLevels,
    StochasticTernary,
    Threshold,
    TopK,
    count_kept,
)
from fedtern.core.feedback import MomentumCorrection, PowerIteration, VarianceThreshold
from fedtern.core.layout import Layout
from fedtern.core.methods import Link
from fedtern.core.updates.cosines import block_side
from fedtern.core.updates.factors import (
    choose_ranks,
    count_right_values,
    count_values,
    matrix_shapes,
)


@cache
def bits_per_position(p: float) -> float:
    """Return b* + 1 / (1 - (1 - p)^(2^b*)), the mean number of bits of a Golomb-coded gap.

    >>> round(bits_per_position(0.01), 3)
    8.108
    """
    if p >= 1:
        return 1.0
    b = golomb_width(1, 1 / p)
    return float(b + 1 / (1 - (1 - p) ** 2**b))


def analytic_bits(link: Link, layout: Layout, rounds: int = 1, sent: int | None = None) -> float:
    """Return the number of bits of one message with the updates of several rounds.

    Args:
        link: the direction of the message.
        layout: the model's tensors.
        rounds: the number of rounds.
        sent: the number of values in an update, for methods where it depends on the data.

    """
    source = getattr(link.feedback, "compressor", link.feedback)
    if isinstance(source, Sign):
        return layout.size * (1 if rounds == 1 else math.log2(2 * rounds + 1))
    formula = FORMULAS.get(type(source))
    if formula is None:
        return 32.0 * layout.size
    return rounds * formula(source, layout, layout.size if sent is None else sent)


def _positions_and(bits_per_value: int) -> Callable[[Any, Layout, int], float]:
    """Return the formula for k Golomb-coded positions and ``bits_per_value`` bits each."""

    def formula(source: Any, layout: Layout, sent: int) -> float:
        k = count_kept(layout.size, source.p, getattr(source, "least", 1))
        return k * (bits_per_position(k / layout.size) + bits_per_value)

    return formula


def _palette(source: SparsePalette, layout: Layout, sent: int) -> float:
    """Return 2 bits per value and those of its position in a chunk, Sarfi et al. (2025)."""
    return _positions_and(2)(source, layout, sent)


def _cosines(source: CosineTopK, layout: Layout, sent: int) -> float:
    """Return 32 bits per coefficient and the bits of its number in a block, Peng et al. (2024)."""
    total = 0.0
    for rows, columns in matrix_shapes(layout):
        if rows * columns:
            block = block_side(rows) * block_side(columns)
            kept = min(source.k, block) * rows * columns / block
            total += kept * (32 + math.ceil(math.log2(block)))
    return total


def _words(source: Any, layout: Layout, sent: int) -> float:
    """Return 32 bits per value: position, sign, and (Tsuzuku et al.) three bits of exponent."""
    return 32.0 * sent


def _levels(source: StochasticLevels, layout: Layout, sent: int) -> float:
    """Return the smaller bound of sparse (Theorem 3.2) and dense coding, Alistarh et al. (2017)."""
    s = source.steps
    d = min(source.bucket, layout.size)
    nonzeros = s * (s + math.sqrt(d))
    sparse = (3 + 1.5 * math.log2(2 * (s * s + d) / nonzeros)) * nonzeros
    dense = (0.5 * (math.log2(1 + (s * s + min(d, s * math.sqrt(d))) / d) + 1) + 2) * d
    return (min(sparse, dense) + 32) * layout.size / d


def _factors(source: Any, layout: Layout, sent: int) -> float:
    sides = matrix_shapes(layout)
    ranks = choose_ranks(sides, source.rank)
    return 32.0 * sum(count_values(s, r) for s, r in zip(sides, ranks, strict=True))


def _right_factors(source: RandomSubspace, layout: Layout, sent: int) -> float:
    sides = matrix_shapes(layout)
    ranks = choose_ranks(sides, source.rank)
    return 32.0 * sum(count_right_values(s, r) for s, r in zip(sides, ranks, strict=True))


FORMULAS: dict[type, Callable[[Any, Layout, int], float]] = {
    TopK: _positions_and(32),
    MomentumCorrection: _positions_and(32),
    SparseTernary: _positions_and(1),
    SparseSteps: _positions_and(1),
    SparseBinary: _positions_and(0),
    SparsePalette: _palette,
    CosineTopK: _cosines,
    Threshold: _words,
    VarianceThreshold: _words,
    ScaledSign: lambda source, layout, sent: layout.size + 32.0 * layout.ends.size,
    StochasticTernary: lambda source, layout, sent: layout.size * math.log2(3),
    StochasticLevels: _levels,
    SpectralAtoms: _factors,
    PowerIteration: _factors,
    RandomMask: lambda source, layout, sent: 32.0 * count_kept(layout.size, source.p),
    RandomSubspace: _right_factors,
    RotatedCentroids: lambda source, layout, sent: float(source.bits * layout.size),
    Sketch: lambda source, layout, sent: source.bits * count_kept(layout.size, source.p),
}
"""Formulas for the bits of one update, by compressor or feedback rule."""
