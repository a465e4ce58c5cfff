"""Lossy steps: from a vector to an update that is cheaper to send.

A compressor is pure: the same vector and random generator give the same update. The update may
share memory with the vector it was made from.
"""

from fedtern.core.compressors.compressor import (
    Accumulating,
    Compressor,
    Identity,
    Restricting,
    check_finite,
    check_kept,
    thresholds_of,
)
from fedtern.core.compressors.levels import StochasticLevels, StochasticTernary
from fedtern.core.compressors.lowrank import RandomSubspace, SpectralAtoms
from fedtern.core.compressors.signs import ScaledSign, Sign
from fedtern.core.compressors.sketches import RandomMask, Sketch
from fedtern.core.compressors.sparse import SparseBinary, SparseTernary, Threshold, TopK, count_kept

__all__ = [
    "Accumulating",
    "Compressor",
    "Identity",
    "RandomMask",
    "RandomSubspace",
    "Restricting",
    "ScaledSign",
    "Sign",
    "Sketch",
    "SparseBinary",
    "SparseTernary",
    "SpectralAtoms",
    "StochasticLevels",
    "StochasticTernary",
    "Threshold",
    "TopK",
    "check_finite",
    "check_kept",
    "count_kept",
    "thresholds_of",
]
