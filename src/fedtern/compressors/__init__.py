"""Lossy steps: from a vector to an update that is cheaper to send.

A compressor is pure: the same vector and random generator give the same update. The update may
share memory with the vector it was made from.
"""

from fedtern.compressors.compressor import (
    Accumulating,
    Compressor,
    Identity,
    Restricting,
    check_finite,
    check_kept,
    thresholds_of,
)
from fedtern.compressors.levels import StochasticLevels, StochasticTernary
from fedtern.compressors.lowrank import RandomSubspace, SpectralAtoms
from fedtern.compressors.signs import ScaledSign, Sign
from fedtern.compressors.sketches import RandomMask, Sketch
from fedtern.compressors.sparse import SparseBinary, SparseTernary, Threshold, TopK, count_kept

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
