"""The paper's own count of bits: formulas, to stand beside measured bytes and never in their place.

Per client and round: entropy-coded updates upwards, and downwards as many of them as the client
missed rounds (for signSGD log2(2 s + 1) bits a parameter, for dense updates one model).
"""

from __future__ import annotations

import math

from fedtern.codecs.golomb import golomb_width
from fedtern.compressors import Compressor, Identity, Sign, SparseTernary, TopK, count_kept
from fedtern.memory import ErrorFeedback, Memoryless
from fedtern.methods import Link


def bits_per_position(p: float) -> float:
    """b* + 1 / (1 - (1 - p)^(2^b*)): what a Golomb-coded gap takes on average.

    >>> round(bits_per_position(0.01), 3)
    8.108
    """
    if p >= 1:
        return 1.0
    b = golomb_width(1, 1 / p)
    return float(b + 1 / (1 - (1 - p) ** 2**b))


def bits(link: Link, size: int, rounds: int = 1) -> float:
    """What a client pays for ``rounds`` rounds' updates at once, on a model of ``size``."""
    compressor = compressor_of(link)
    if isinstance(compressor, Sign):
        return size * (1 if rounds == 1 else math.log2(2 * rounds + 1))
    if isinstance(compressor, SparseTernary | TopK):
        k = count_kept(size, compressor.p)
        value = 1 if isinstance(compressor, SparseTernary) else 32
        return rounds * k * (bits_per_position(k / size) + value)
    return 32.0 * size


def compressor_of(link: Link) -> Compressor:
    """What a link sends."""
    if isinstance(link.memory, ErrorFeedback | Memoryless):
        return link.memory.compressor
    return Identity()
