"""Lossless steps: from an update to bytes and back."""

from fedtern.codecs.codec import Codec, NamedCodec
from fedtern.codecs.plain import DenseCodec, NothingCodec, SignsCodec
from fedtern.codecs.positions import ExactCodec, SparseCodec, TernaryCodec
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
    )
}
"""Every codec by the id it writes; an id is never given to another format."""

__all__ = [
    "CODECS",
    "Codec",
    "DenseCodec",
    "ExactCodec",
    "NamedCodec",
    "NothingCodec",
    "SeriesCodec",
    "SignsCodec",
    "SparseCodec",
    "TallyCodec",
    "TernaryCodec",
]
