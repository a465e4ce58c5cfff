"""The publications' own counts of bits: formulas, to stand beside measured bytes, never for them.

Per client and round: an update upwards, and downwards as many of them as the client missed rounds
(for signSGD log2(2 s + 1) bits a parameter, for exact updates one model). Where a publication
gives a bound only, it is the bound; where the number of values is up to the data, it is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from fedtern.core.codecs.golomb import golomb_width
from fedtern.core.compressors import (
    RandomMask,
    RandomSubspace,
    ScaledSign,
    Sign,
    Sketch,
    SparseBinary,
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
from fedtern.core.updates.factors import (
    choose_ranks,
    count_right_values,
    count_values,
    matrix_shapes,
)


@cache
def bits_per_position(p: float) -> float:
    """b* + 1 / (1 - (1 - p)^(2^b*)): what a Golomb-coded gap takes on average.

    >>> round(bits_per_position(0.01), 3)
    8.108
    """
    if p >= 1:
        return 1.0
    b = golomb_width(1, 1 / p)
    return float(b + 1 / (1 - (1 - p) ** 2**b))


def bits(link: Link, layout: Layout, rounds: int = 1, sent: int | None = None) -> float:
    """What a client pays for ``rounds`` rounds' updates at once.

    ``sent`` is how many values an update had, where that follows from the data.
    """
    source = getattr(link.feedback, "compressor", link.feedback)
    if isinstance(source, Sign):
        return layout.size * (1 if rounds == 1 else math.log2(2 * rounds + 1))
    formula = FORMULAS.get(type(source))
    if formula is None:
        return 32.0 * layout.size
    return rounds * formula(source, layout, layout.size if sent is None else sent)


def _positions_and(bits_a_value: int) -> Callable[[Any, Layout, int], float]:
    """K Golomb-coded positions, each with so many bits of its own."""

    def formula(source: Any, layout: Layout, sent: int) -> float:
        k = count_kept(layout.size, source.p)
        return k * (bits_per_position(k / layout.size) + bits_a_value)

    return formula


def _words(source: Any, layout: Layout, sent: int) -> float:
    """A 32-bit word for each value: position, sign, and (Tsuzuku et al.) three bits of exponent."""
    return 32.0 * sent


def _levels(source: StochasticLevels, layout: Layout, sent: int) -> float:
    """Alistarh et al. (2017): the bound of Theorem 3.2, or of the dense coding where it is less."""
    s, d = source.steps, min(source.bucket, layout.size)
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
    SparseBinary: _positions_and(0),
    Threshold: _words,
    VarianceThreshold: _words,
    ScaledSign: lambda source, layout, sent: layout.size + 32.0 * layout.ends.size,
    StochasticTernary: lambda source, layout, sent: layout.size * math.log2(3),
    StochasticLevels: _levels,
    SpectralAtoms: _factors,
    PowerIteration: _factors,
    RandomMask: lambda source, layout, sent: 32.0 * count_kept(layout.size, source.p),
    RandomSubspace: _right_factors,
    Sketch: lambda source, layout, sent: source.bits * count_kept(layout.size, source.p),
}
"""Bits of one update, by what makes it."""
