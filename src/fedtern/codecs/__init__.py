"""Lossless steps: from an update to bytes and back."""

from fedtern.codecs.codec import Codec, NamedCodec
from fedtern.codecs.factors import LowRankCodec, ProjectedCodec
from fedtern.codecs.levels import EliasCodec, TensorSignsCodec, TritsCodec
from fedtern.codecs.plain import DenseCodec, NothingCodec, SignsCodec
from fedtern.codecs.positions import (
    BinaryCodec,
    ExactCodec,
    PowersCodec,
    SparseCodec,
    TernaryCodec,
)
from fedtern.codecs.seeded import MaskedCodec, SketchedCodec
from fedtern.codecs.sums import SeriesCodec, TallyCodec

CODECS: dict[int, NamedCodec] = {
    codec.id: codec
    for codec in (
        NothingCodec(),
        DenseCodec(),
        SparseCodec(),
        TernaryCodec("model"),
        TernaryCodec("tensor"),
        SignsCodec(),
        SeriesCodec(),
        TallyCodec(),
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
    )
}
"""Every codec by the id it writes; an id is never given to another format."""

__all__ = [
    "CODECS",
    "BinaryCodec",
    "Codec",
    "DenseCodec",
    "EliasCodec",
    "ExactCodec",
    "LowRankCodec",
    "MaskedCodec",
    "NamedCodec",
    "NothingCodec",
    "PowersCodec",
    "ProjectedCodec",
    "SeriesCodec",
    "SignsCodec",
    "SketchedCodec",
    "SparseCodec",
    "TallyCodec",
    "TensorSignsCodec",
    "TernaryCodec",
    "TritsCodec",
]
