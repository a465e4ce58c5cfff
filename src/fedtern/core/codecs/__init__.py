"""Codecs: lossless steps from an update to bytes and back."""

from fedtern.core.codecs.adaptive import AdaptiveCodec, StepsCodec
from fedtern.core.codecs.codec import BoundedCodec, Codec, NamedCodec
from fedtern.core.codecs.factors import LowRankCodec, ProjectedCodec
from fedtern.core.codecs.levels import EliasCodec, TensorSignsCodec, TritsCodec
from fedtern.core.codecs.plain import DenseCodec, NothingCodec, SignsCodec
from fedtern.core.codecs.positions import (
    BinaryCodec,
    CosinesCodec,
    PaletteCodec,
    PowersCodec,
    SparseCodec,
    SparseOrDenseCodec,
    TernaryCodec,
)
from fedtern.core.codecs.seeded import MaskedCodec, RotatedCodec, SketchedCodec
from fedtern.core.codecs.sums import SignCountsCodec, UpdateSequenceCodec

CODECS: dict[int, NamedCodec] = {
    codec.id: codec
    for codec in (
        NothingCodec(),
        DenseCodec(),
        SparseCodec(),
        TernaryCodec("model"),
        TernaryCodec("tensor"),
        SignsCodec(),
        UpdateSequenceCodec(),
        SignCountsCodec(),
        BinaryCodec("model"),
        BinaryCodec("tensor"),
        TritsCodec(),
        EliasCodec(),
        TensorSignsCodec(),
        LowRankCodec(),
        MaskedCodec(),
        ProjectedCodec(),
        SketchedCodec(),
        PowersCodec(),
        StepsCodec("model"),
        StepsCodec("tensor"),
        RotatedCodec(),
        PaletteCodec(),
        CosinesCodec(),
    )
}
"""Every codec by its id. The id of a format is never reused for another one."""

__all__ = [
    "CODECS",
    "AdaptiveCodec",
    "BinaryCodec",
    "BoundedCodec",
    "Codec",
    "CosinesCodec",
    "DenseCodec",
    "EliasCodec",
    "LowRankCodec",
    "MaskedCodec",
    "NamedCodec",
    "NothingCodec",
    "PaletteCodec",
    "PowersCodec",
    "ProjectedCodec",
    "RotatedCodec",
    "SignCountsCodec",
    "SignsCodec",
    "SketchedCodec",
    "SparseCodec",
    "SparseOrDenseCodec",
    "StepsCodec",
    "TensorSignsCodec",
    "TernaryCodec",
    "TritsCodec",
    "UpdateSequenceCodec",
]
