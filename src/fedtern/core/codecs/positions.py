"""Updates that name the positions they change."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.codecs.codec import expect, open_payload
from fedtern.core.codecs.golomb import decode_positions, encode_positions, read_count
from fedtern.core.codecs.plain import DenseCodec
from fedtern.core.errors import DecodeError
from fedtern.core.kernels import pack_levels, unpack_levels
from fedtern.core.layout import Layout, Scope, check_scope
from fedtern.core.updates import Dense, Sparse, Ternary, Update, find_segments
from fedtern.core.wire import check_floats, floats, varint

_BIAS, _TOP = 126, 227  # an exponent byte of 1 stands for 2**-126, one of 227 for 2**100


@dataclass(frozen=True)
class SparseCodec:
    """``id | count | float32 values | positions``."""

    part_id: ClassVar[str] = "sparse"
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

    part_id: ClassVar[str] = "ternary"
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
        cuts = [0, count] if ends.size == 1 else [0, *np.searchsorted(indices, ends).tolist()]
        for mu, (a, b) in zip(mus.tolist(), pairwise(cuts), strict=True):
            if mu <= 0 if a < b else mu != 0:
                raise DecodeError("a magnitude is not positive, or belongs to no position")
        signs = np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
        return Ternary(layout.size, indices, signs, mus, None if self.scope == "model" else ends)


@dataclass(frozen=True)
class BinaryCodec:
    """``id | count | signed mean, or one a tensor | positions``."""

    part_id: ClassVar[str] = "binary"
    scope: Scope = "model"

    def __post_init__(self) -> None:
        check_scope(self.scope)

    @property
    def id(self) -> int:
        """8 with one mean for the model, 9 with one for each tensor."""
        return 8 if self.scope == "model" else 9

    @property
    def name(self) -> str:
        """What a person would call it."""
        return "binary" if self.scope == "model" else "binary, by tensor"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """A Golomb-coded gap for each non-zero, and nothing else."""
        ternary, ends = expect(update, Ternary), layout.segments(self.scope)
        if ternary.mus.size != ends.size:
            raise TypeError(f'got {ternary.mus.size} magnitudes for scope="{self.scope}"')
        means = np.zeros(ends.size, np.float32)
        means[find_segments(ternary.indices, ends)] = ternary.values
        if not np.array_equal(means[find_segments(ternary.indices, ends)], ternary.values):
            raise TypeError("this codec writes updates of one sign a segment, got both")
        head = bytes([self.id]) + varint(ternary.indices.size) + floats(means)
        return head + encode_positions(ternary.indices, layout.size)

    def decode(self, data: bytes, layout: Layout) -> Ternary:
        """Positions below the layout's size, all of a segment at its mean."""
        reader = open_payload(data, self.id)
        ends = layout.segments(self.scope)
        count = read_count(reader, layout.size)
        means = check_floats(reader.floats(ends.size), lambda i: f"mean {i}")
        indices = decode_positions(reader, count, layout.size)
        segments = find_segments(indices, ends)
        used = np.bincount(segments, minlength=ends.size) > 0
        if not np.array_equal(means != 0, used) or np.signbit(means[~used]).any():
            raise DecodeError("a mean is zero, or belongs to no position")
        single = None if self.scope == "model" else ends
        return Ternary(layout.size, indices, means[segments] > 0, np.abs(means), single)


@dataclass(frozen=True)
class PowersCodec:
    """``id | count | exponent for each tensor | signs | 3 bits below it | positions``.

    Tsuzuku et al. (2018), section 4.2: every value is a power of two, up to seven halvings below
    the largest of its tensor.
    """

    part_id: ClassVar[str] = "powers_of_two"
    id: ClassVar[int] = 17
    name: ClassVar[str] = "powers of two"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Four bits and a Golomb-coded gap for each non-zero, one byte a tensor."""
        sparse = expect(update, Sparse)
        tensors = find_segments(sparse.indices, layout.ends)
        fractions, exponents = np.frexp(np.abs(sparse.values))
        tops = _largest(exponents + _BIAS, sparse.indices, layout.ends)
        below = tops[tensors] - (exponents + _BIAS)
        if (fractions != 0.5).any() or (below > 7).any() or (exponents <= -_BIAS).any():
            raise TypeError("this codec writes powers of two within 2**7 of each other")
        packed = np.zeros((3 * below.size + 7) // 8, np.uint8)
        pack_levels(below.astype(np.int32), 3, packed)
        signs = np.packbits(sparse.values > 0, bitorder="little").tobytes()
        head = bytes([self.id]) + varint(below.size) + tops.astype(np.uint8).tobytes()
        return head + signs + packed.tobytes() + encode_positions(sparse.indices, layout.size)

    def decode(self, data: bytes, layout: Layout) -> Sparse:
        """Positions below the layout's size, with their powers."""
        reader = open_payload(data, self.id)
        count = read_count(reader, layout.size)
        tops = np.frombuffer(reader.take(layout.ends.size), np.uint8).astype(np.int64)
        signs = np.unpackbits(reader.bits(count), count=count, bitorder="little")
        below = np.empty(count, np.int32)
        packed = np.concatenate([reader.bits(3 * count), np.zeros(8, np.uint8)])
        unpack_levels(packed, 3, below)
        indices = decode_positions(reader, count, layout.size)
        tensors = find_segments(indices, layout.ends)
        exponents = tops[tensors] - below
        if (
            not np.array_equal(_largest(exponents, indices, layout.ends), tops)
            or (exponents < 1).any()
            or (tops > _TOP).any()
        ):
            raise DecodeError("an exponent is out of range, or not that of a largest value")
        values = np.ldexp(np.where(signs, np.float32(0.5), np.float32(-0.5)), exponents - _BIAS)
        return Sparse(layout.size, indices, values.astype(np.float32))


@dataclass(frozen=True)
class ExactCodec:
    """Whichever is shorter: ``SparseCodec``, or ``DenseCodec``."""

    part_id: ClassVar[str] = "sparse_or_dense"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """The shorter of the two, for a dense update of which much may be zero."""
        dense = expect(update, Dense)
        indices = np.flatnonzero(dense.values)
        # A non-zero takes 33 bits at the least: with few zeros there is no need to try.
        if 33 * indices.size < 32 * layout.size:
            data = SparseCodec().encode(Sparse(layout.size, indices, dense.values[indices]), layout)
            if len(data) < 4 * layout.size:
                return data
        return DenseCodec().encode(dense, layout)

    def decode(self, data: bytes, layout: Layout) -> Update:
        """Sparse or dense, as it was sent."""
        if data[:1] == bytes([SparseCodec.id]):
            return SparseCodec().decode(data, layout)
        return DenseCodec().decode(data, layout)


def _largest(
    values: NDArray[Any], indices: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The largest of the values in each segment; 0 where there is none."""
    cuts = [0, *np.searchsorted(indices, ends).tolist()]
    return np.array([values[a:b].max(initial=0) for a, b in pairwise(cuts)], np.int64)
