"""Codecs of updates with explicit positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtern.core.codecs.codec import (
    MAX_VARINT_BYTES,
    Codec,
    check_kind,
    max_entries,
    open_payload,
)
from fedtern.core.codecs.golomb import (
    decode_positions,
    encode_positions,
    max_position_bytes,
    read_count,
)
from fedtern.core.codecs.plain import DenseCodec
from fedtern.core.errors import DecodeError
from fedtern.core.kernels import pack_levels, unpack_levels
from fedtern.core.layout import Layout, Scope, check_scope
from fedtern.core.updates import Cosines, Dense, Limits, Sparse, Ternary, Update, find_segments
from fedtern.core.updates.factors import matrix_shapes
from fedtern.core.wire import Reader, check_floats, floats, varint

# An exponent byte of 1 means 2**-126, one of 227 means 2**100, the largest value of a message.
# ``np.frexp`` gives exponents of fractions from 0.5 to 1, so 2**-126 has exponent -125.
_BIAS = 126
_MAX_EXPONENT = 227

_PALETTE_SIZE = 4

PositionReader = Callable[[Reader, int, Layout], NDArray[np.int64]]
"""Reads a number of positions from the rest of a message."""


def read_golomb(reader: Reader, count: int, layout: Layout) -> NDArray[np.int64]:
    """Read ``count`` Golomb-coded positions from the rest of a message."""
    return decode_positions(reader, count, layout.size)


class PositionCodec(Codec, Protocol):
    """A codec whose payload ends with the positions, which can be coded in several ways."""

    def encode_head(self, update: Update, layout: Layout) -> tuple[bytes, NDArray[np.int64]]:
        """Encode the part before the positions; return it and the positions."""
        ...

    def decode_with(self, data: bytes, layout: Layout, read_positions: PositionReader) -> Update:
        """Decode an update, given a function that reads its positions."""
        ...

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        ...


@dataclass(frozen=True)
class SparseCodec:
    """Codec of sparse updates.

    Format: ``id | count | float32 values | positions``.
    """

    part_id: ClassVar[str] = "sparse"
    id: ClassVar[int] = 2
    name: ClassVar[str] = "sparse"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode four bytes and a Golomb-coded gap for each non-zero."""
        head, indices = self.encode_head(update, layout)
        return head + encode_positions(indices, layout.size)

    def encode_head(self, update: Update, layout: Layout) -> tuple[bytes, NDArray[np.int64]]:
        """Encode the part before the positions; return it and the positions."""
        sparse = check_kind(update, Sparse)
        head = bytes([self.id]) + varint(sparse.indices.size) + floats(sparse.values)
        return head, sparse.indices

    def decode(self, data: bytes, layout: Layout) -> Sparse:
        """Decode positions below the layout's size and their values."""
        return self.decode_with(data, layout, read_golomb)

    def decode_with(self, data: bytes, layout: Layout, read_positions: PositionReader) -> Sparse:
        """Like ``decode``, given a function that reads the positions."""
        reader = open_payload(data, self.id)
        count = read_count(reader, layout.size)
        values = reader.floats(count)
        indices = read_positions(reader, count, layout)
        check_floats(values, lambda i: layout.name_at(int(indices[i])))
        return Sparse(layout.size, indices, values)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        return _max_bytes(limits, layout, entry_bits=32)


@dataclass(frozen=True)
class TernaryCodec:
    """Codec of ternary updates.

    Format: ``id | count | one mu, or one per tensor | signs | positions``.
    """

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
        """The name to display."""
        return "ternary" if self.scope == "model" else "ternary, by tensor"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode one bit and a Golomb-coded gap for each non-zero."""
        head, indices = self.encode_head(update, layout)
        return head + encode_positions(indices, layout.size)

    def encode_head(self, update: Update, layout: Layout) -> tuple[bytes, NDArray[np.int64]]:
        """Encode the part before the positions; return it and the positions."""
        ternary = check_kind(update, Ternary)
        _check_magnitudes(ternary, layout, self.scope)
        signs = np.packbits(ternary.signs, bitorder="little").tobytes()
        head = bytes([self.id]) + varint(ternary.indices.size) + floats(ternary.mus)
        return head + signs, ternary.indices

    def decode(self, data: bytes, layout: Layout) -> Ternary:
        """Decode positions below the layout's size, their signs and magnitudes."""
        return self.decode_with(data, layout, read_golomb)

    def decode_with(self, data: bytes, layout: Layout, read_positions: PositionReader) -> Ternary:
        """Like ``decode``, given a function that reads the positions."""
        reader = open_payload(data, self.id)
        ends = layout.segments(self.scope)
        count = read_count(reader, layout.size)
        mus = check_floats(reader.floats(ends.size), lambda i: f"magnitude {i}")
        packed = reader.bits(count)
        indices = read_positions(reader, count, layout)
        cuts = [0, count] if ends.size == 1 else [0, *np.searchsorted(indices, ends).tolist()]
        for mu, (a, b) in zip(mus.tolist(), pairwise(cuts), strict=True):
            has_entries = a < b
            if mu <= 0 if has_entries else mu != 0:
                raise DecodeError("a magnitude is not positive, or belongs to no position")
        signs = np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
        return Ternary(layout.size, indices, signs, mus, None if self.scope == "model" else ends)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        return _max_bytes(limits, layout, entry_bits=1, head=4 * layout.segments(self.scope).size)


@dataclass(frozen=True)
class BinaryCodec:
    """Codec of ternary updates of one sign per segment.

    Format: ``id | count | one signed mean, or one per tensor | positions``.
    """

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
        """The name to display."""
        return "binary" if self.scope == "model" else "binary, by tensor"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode a Golomb-coded gap for each non-zero; the means carry the signs."""
        head, indices = self.encode_head(update, layout)
        return head + encode_positions(indices, layout.size)

    def encode_head(self, update: Update, layout: Layout) -> tuple[bytes, NDArray[np.int64]]:
        """Encode the part before the positions; return it and the positions."""
        ternary = check_kind(update, Ternary)
        _check_magnitudes(ternary, layout, self.scope)
        ends = layout.segments(self.scope)
        segments = find_segments(ternary.indices, ends)
        means = np.zeros(ends.size, np.float32)
        means[segments] = ternary.values
        if not np.array_equal(means[segments], ternary.values):
            raise TypeError("this codec writes one sign per segment, got both signs in a segment")
        head = bytes([self.id]) + varint(ternary.indices.size) + floats(means)
        return head, ternary.indices

    def decode(self, data: bytes, layout: Layout) -> Ternary:
        """Decode positions below the layout's size, with the mean of their segment."""
        return self.decode_with(data, layout, read_golomb)

    def decode_with(self, data: bytes, layout: Layout, read_positions: PositionReader) -> Ternary:
        """Like ``decode``, given a function that reads the positions."""
        reader = open_payload(data, self.id)
        ends = layout.segments(self.scope)
        count = read_count(reader, layout.size)
        means = check_floats(reader.floats(ends.size), lambda i: f"mean {i}")
        indices = read_positions(reader, count, layout)
        segments = find_segments(indices, ends)
        used = np.bincount(segments, minlength=ends.size) > 0
        if not np.array_equal(means != 0, used) or np.signbit(means[~used]).any():
            raise DecodeError("a mean is zero, or belongs to no position")
        return Ternary(
            layout.size,
            indices,
            means[segments] > 0,
            np.abs(means),
            None if self.scope == "model" else ends,
        )

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        return _max_bytes(limits, layout, entry_bits=0, head=4 * layout.segments(self.scope).size)


@dataclass(frozen=True)
class PowersCodec:
    """Codec of sparse powers of two.

    Format: ``id | count | exponent of each tensor | signs | 3-bit differences | positions``.

    Tsuzuku et al. (2018), section 4.2: every value is a power of two, from 1 to 2**-7 times the
    largest of its tensor. The difference is the largest exponent minus the value's exponent.
    """

    part_id: ClassVar[str] = "powers_of_two"
    id: ClassVar[int] = 17
    name: ClassVar[str] = "powers of two"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode four bits and a Golomb-coded gap for each non-zero, and one byte per tensor."""
        sparse = check_kind(update, Sparse)
        tensors = find_segments(sparse.indices, layout.ends)
        fractions, exponents = np.frexp(np.abs(sparse.values))
        largest = _segment_maxima(exponents + _BIAS, sparse.indices, layout.ends)
        differences = largest[tensors] - (exponents + _BIAS)
        if (fractions != 0.5).any() or (differences > 7).any() or (exponents <= -_BIAS).any():
            raise TypeError("this codec writes powers of two within 2**7 of each other")
        packed = np.zeros((3 * differences.size + 7) // 8, np.uint8)
        pack_levels(differences.astype(np.int32), 3, packed)
        signs = np.packbits(sparse.values > 0, bitorder="little").tobytes()
        head = bytes([self.id]) + varint(differences.size) + largest.astype(np.uint8).tobytes()
        return head + signs + packed.tobytes() + encode_positions(sparse.indices, layout.size)

    def decode(self, data: bytes, layout: Layout) -> Sparse:
        """Decode positions below the layout's size and their powers of two."""
        reader = open_payload(data, self.id)
        count = read_count(reader, layout.size)
        largest = np.frombuffer(reader.take(layout.ends.size), np.uint8).astype(np.int64)
        signs = np.unpackbits(reader.bits(count), count=count, bitorder="little")
        differences = np.empty(count, np.int32)
        packed = np.concatenate([reader.bits(3 * count), np.zeros(8, np.uint8)])
        unpack_levels(packed, 3, differences)
        indices = decode_positions(reader, count, layout.size)
        tensors = find_segments(indices, layout.ends)
        exponents = largest[tensors] - differences
        if (exponents < 1).any() or (largest > _MAX_EXPONENT).any():
            raise DecodeError(f"an exponent is not from 1 to {_MAX_EXPONENT}")
        if not np.array_equal(_segment_maxima(exponents, indices, layout.ends), largest):
            raise DecodeError("the exponent of a tensor is not that of its largest value")
        values = np.ldexp(np.where(signs, np.float32(0.5), np.float32(-0.5)), exponents - _BIAS)
        return Sparse(layout.size, indices, values.astype(np.float32))

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        return _max_bytes(limits, layout, entry_bits=4, head=layout.ends.size)


@dataclass(frozen=True)
class PaletteCodec:
    """Codec of sparse updates with at most four values per tensor.

    Format: ``id | count | palette of each tensor | 2-bit numbers of values | positions``. A palette
    is the number of its values and the values, ascending.
    """

    part_id: ClassVar[str] = "palette"
    id: ClassVar[int] = 33
    name: ClassVar[str] = "palette"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode two bits and a Golomb-coded gap for each non-zero, and the palettes."""
        head, indices = self.encode_head(update, layout)
        return head + encode_positions(indices, layout.size)

    def encode_head(self, update: Update, layout: Layout) -> tuple[bytes, NDArray[np.int64]]:
        """Encode the part before the positions; return it and the positions."""
        sparse = check_kind(update, Sparse)
        palettes = []
        numbers = np.empty(sparse.indices.size, np.int32)
        cuts = [0, *np.searchsorted(sparse.indices, layout.ends).tolist()]
        for a, b in pairwise(cuts):
            palette, numbers[a:b] = np.unique(sparse.values[a:b], return_inverse=True)
            if palette.size > _PALETTE_SIZE or not palette.all():
                raise TypeError("this codec writes at most four values per tensor, none of them 0")
            palettes.append(bytes([palette.size]) + floats(palette))
        packed = np.zeros((2 * numbers.size + 7) // 8, np.uint8)
        pack_levels(numbers, 2, packed)
        head = bytes([self.id]) + varint(numbers.size) + b"".join(palettes)
        return head + packed.tobytes(), sparse.indices

    def decode(self, data: bytes, layout: Layout) -> Sparse:
        """Decode positions below the layout's size and their values."""
        return self.decode_with(data, layout, read_golomb)

    def decode_with(self, data: bytes, layout: Layout, read_positions: PositionReader) -> Sparse:
        """Like ``decode``, given a function that reads the positions."""
        reader = open_payload(data, self.id)
        count = read_count(reader, layout.size)
        palettes = np.zeros((layout.ends.size, _PALETTE_SIZE), np.float32)
        sizes = np.zeros(layout.ends.size, np.int64)
        for tensor in range(sizes.size):
            sizes[tensor] = size = reader.byte()
            if size > _PALETTE_SIZE:
                raise DecodeError(f"a palette has at most {_PALETTE_SIZE} values, got {size}")
            palette = check_floats(reader.floats(size), lambda i: f"value {i} of a palette")
            if not palette.all() or (palette[1:] <= palette[:-1]).any():
                raise DecodeError("the values of a palette are not ascending, or one is zero")
            palettes[tensor, :size] = palette
        numbers = np.empty(count, np.int32)
        packed = np.concatenate([reader.bits(2 * count), np.zeros(8, np.uint8)])
        unpack_levels(packed, 2, numbers)
        indices = read_positions(reader, count, layout)
        tensors = find_segments(indices, layout.ends)
        is_used = np.zeros(palettes.shape, np.bool_)
        is_used[tensors, numbers] = True
        if not np.array_equal(is_used, np.arange(_PALETTE_SIZE) < sizes[:, None]):
            raise DecodeError("a value is not in its palette, or a value of a palette is not used")
        return Sparse(layout.size, indices, palettes[tensors, numbers])

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        palettes = layout.ends.size * (1 + 4 * _PALETTE_SIZE)
        return _max_bytes(limits, layout, entry_bits=2, head=palettes)


@dataclass(frozen=True)
class CosinesCodec:
    """Codec of coefficients of cosine transforms.

    Format: ``id | count | float32 coefficients | positions``.
    """

    part_id: ClassVar[str] = "cosines"
    id: ClassVar[int] = 34
    name: ClassVar[str] = "cosines"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode four bytes and a Golomb-coded gap for each coefficient."""
        cosines = check_kind(update, Cosines)
        head = bytes([self.id]) + varint(cosines.indices.size) + floats(cosines.coefficients)
        return head + encode_positions(cosines.indices, layout.size)

    def decode(self, data: bytes, layout: Layout) -> Cosines:
        """Decode positions below the layout's size and their coefficients."""
        reader = open_payload(data, self.id)
        count = read_count(reader, layout.size)
        values = reader.floats(count)
        indices = decode_positions(reader, count, layout.size)
        check_floats(values, lambda i: f"coefficient {i}")
        return Cosines(matrix_shapes(layout), indices, values)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        return _max_bytes(limits, layout, entry_bits=32)


@dataclass(frozen=True)
class SparseOrDenseCodec:
    """Encodes a dense update by ``SparseCodec`` or ``DenseCodec``, whichever is shorter."""

    part_id: ClassVar[str] = "sparse_or_dense"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode all values, or the non-zeros only."""
        dense = check_kind(update, Dense)
        indices = np.flatnonzero(dense.values)
        # A non-zero takes at least 33 bits. With few zeros, the sparse form cannot be shorter.
        if 33 * indices.size < 32 * layout.size:
            data = SparseCodec().encode(Sparse(layout.size, indices, dense.values[indices]), layout)
            if len(data) < 4 * layout.size:
                return data
        return DenseCodec().encode(dense, layout)

    def decode(self, data: bytes, layout: Layout) -> Update:
        """Decode a sparse or a dense update, depending on its id."""
        if data[:1] == bytes([SparseCodec.id]):
            return SparseCodec().decode(data, layout)
        return DenseCodec().decode(data, layout)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return an upper bound of the length of an update within limits."""
        return DenseCodec().max_bytes(limits, layout)


def _max_bytes(limits: Limits, layout: Layout, *, entry_bits: int, head: int = 0) -> int:
    """Return a bound for ``id | count | head | entry_bits per position | positions``."""
    count = max_entries(limits, layout)
    entries = (count * entry_bits + 7) // 8 + 1  # some bits are padded separately
    return 1 + MAX_VARINT_BYTES + head + entries + max_position_bytes(count, layout.size)


def _check_magnitudes(ternary: Ternary, layout: Layout, scope: Scope) -> None:
    expected = layout.segments(scope).size
    if ternary.mus.size != expected:
        raise TypeError(
            f'this codec writes {expected} magnitudes with scope="{scope}", got {ternary.mus.size}'
        )


def _segment_maxima(
    values: NDArray[Any], indices: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the largest of the values in each segment; 0 for a segment without values."""
    cuts = [0, *np.searchsorted(indices, ends).tolist()]
    return np.array([values[a:b].max(initial=0) for a, b in pairwise(cuts)], np.int64)
