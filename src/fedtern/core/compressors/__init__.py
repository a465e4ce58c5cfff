"""Compressors: lossy steps from a vector to an update that is smaller to send.

A compressor is pure: the same vector and random generator give the same update. The update may
share memory with the vector it was made from.
"""

from fedtern.core.compressors.blocks import CosineTopK, SparsePalette
from fedtern.core.compressors.compressor import (
    AccumulatingCompressor,
    Compressor,
    Identity,
    LimitedCompressor,
    SubspaceCompressor,
    check_finite,
    check_selected,
    find_limits,
    next_thresholds,
)
from fedtern.core.compressors.levels import NearestLevels, StochasticLevels, StochasticTernary
from fedtern.core.compressors.lowrank import RandomSubspace, SpectralAtoms
from fedtern.core.compressors.signs import ScaledSign, Sign
from fedtern.core.compressors.sketches import RandomMask, RotatedCentroids, Sketch
from fedtern.core.compressors.sparse import (
    SparseBinary,
    SparseSteps,
    SparseTernary,
    Threshold,
    TopK,
    count_kept,
)

__all__ = [
    "AccumulatingCompressor",
    "Compressor",
    "CosineTopK",
    "Identity",
    "LimitedCompressor",
    "NearestLevels",
    "RandomMask",
    "RandomSubspace",
    "RotatedCentroids",
    "ScaledSign",
    "Sign",
    "Sketch",
    "SparseBinary",
    "SparsePalette",
    "SparseSteps",
    "SparseTernary",
    "SpectralAtoms",
    "StochasticLevels",
    "StochasticTernary",
    "SubspaceCompressor",
    "Threshold",
    "TopK",
    "check_finite",
    "check_selected",
    "count_kept",
    "find_limits",
    "next_thresholds",
]
