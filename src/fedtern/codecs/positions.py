"""Updates that name the positions they change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtern.codecs.codec import expect, open_payload
from fedtern.codecs.golomb import decode_positions, encode_positions, read_count
from fedtern.codecs.plain import DenseCodec
from fedtern.errors import DecodeError
from fedtern.layout import Layout, Scope, check_scope
from fedtern.updates import Dense, Sparse, Ternary, Update, segment_of
from fedtern.wire import check_floats, floats, varint


@dataclass(frozen=True)
class SparseCodec:
    """``id | count | float32 values | positions``."""

    id: ClassVar[int] = 2
    name: ClassVar[str] = "sparse"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Four bytes and a Golomb-coded gap for each non-zero."""
        sparse = expect(update, Sparse)
        positions = encode_positions(sparse.indices, layout.size)
        return bytes([self.id]) + varint(sparse.indices.size) + floats(sparse.values) + positions

    def decode(self, data: bytes, layout: Layout) -> Sparse:
        """Positions below the layout's size, with their values."""
        reader = open_payload(data, self.id)
        count = read_count(reader, layout.size)
        values = reader.floats(count)
        indices = decode_positions(reader, count, layout.size)
        check_floats(values, lambda i: layout.name_at(int(indices[i])))
        return Sparse(layout.size, indices, values)


@dataclass(frozen=True)
class TernaryCodec:
    """``id | count | mu, or one a tensor | signs | positions``."""

    scope: Scope = "model"

    def __post_init__(self) -> None:
        check_scope(self.scope)

    @property
    def id(self) -> int:
        """3 with one magnitude for the model, 4 with one for each tensor."""
        return 3 if self.scope == "model" else 4

    @property
    def name(self) -> str:
        """What a person would call it."""
        return "ternary" if self.scope == "model" else "ternary, by tensor"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """A bit and a Golomb-coded gap for each non-zero."""
        ternary = expect(update, Ternary)
        if ternary.mus.size != layout.segments(self.scope).size:
            raise TypeError(f'got {ternary.mus.size} magnitudes for scope="{self.scope}"')
        signs = np.packbits(ternary.signs, bitorder="little").tobytes()
        head = bytes([self.id]) + varint(ternary.indices.size) + floats(ternary.mus)
        return head + signs + encode_positions(ternary.indices, layout.size)

    def decode(self, data: bytes, layout: Layout) -> Ternary:
        """Positions below the layout's size, with their signs and magnitudes."""
        reader = open_payload(data, self.id)
        ends = layout.segments(self.scope)
        count = read_count(reader, layout.size)
        mus = check_floats(reader.floats(ends.size), lambda i: f"magnitude {i}")
        packed = reader.bits(count)
        indices = decode_positions(reader, count, layout.size)
        used = np.bincount(segment_of(indices, ends), minlength=ends.size) > 0
        if not np.array_equal(mus > 0, used) or (mus < 0).any():
            raise DecodeError("a magnitude is not positive, or belongs to no position")
        signs = np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
        return Ternary(layout.size, indices, signs, mus, None if self.scope == "model" else ends)


@dataclass(frozen=True)
class ExactCodec:
    """Whichever is shorter: ``SparseCodec``, or ``DenseCodec``."""

    def encode(self, update: Update, layout: Layout) -> bytes:
        """The shorter of the two, for a dense update of which much may be zero."""
        dense = expect(update, Dense)
        indices = np.flatnonzero(dense.values)
        if indices.size < layout.size:
            data = SparseCodec().encode(Sparse(layout.size, indices, dense.values[indices]), layout)
            if len(data) < 4 * layout.size:
                return data
        return DenseCodec().encode(dense, layout)

    def decode(self, data: bytes, layout: Layout) -> Update:
        """Sparse or dense, as it was sent."""
        if data[:1] == bytes([SparseCodec.id]):
            return SparseCodec().decode(data, layout)
        return DenseCodec().decode(data, layout)
