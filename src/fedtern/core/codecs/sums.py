"""Codecs of merged updates, which clients download after missing several rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.codecs.codec import check_kind, open_payload
from fedtern.core.codecs.golomb import decode_positions, encode_positions, golomb_width, read_count
from fedtern.core.errors import DecodeError
from fedtern.core.kernels import (
    count_distinct,
    fill_ternary_values,
    measure_keys,
    nest_keys,
    pack_levels,
    split_keys,
    unpack_levels,
)
from fedtern.core.layout import Layout
from fedtern.core.updates import Update
from fedtern.core.updates.sums import MAX_UPDATES, SignCounts, UpdateSequence
from fedtern.core.wire import Reader, check_floats, f32, floats, varint

# Flags of an update sequence.
_TERNARY = 1
_PER_TENSOR = 2
_NESTED = 4


@dataclass(frozen=True)
class UpdateSequenceCodec:
    """Codec of update sequences.

    Format: ``id | flags | updates | entries | magnitudes and signs, or values | keys``.

    The key of an entry is ``position * num_updates + update_index``. Keys are encoded in one of
    two ways. Flat: like positions in a vector of ``size * num_updates``. Nested, which is shorter
    if updates often change the same positions: the distinct positions, then the entries like
    positions in a table with one row per distinct position and one column per update.
    """

    part_id: ClassVar[str] = "update_sequence"
    id: ClassVar[int] = 6
    name: ClassVar[str] = "update sequence"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode the entries, with the keys in the shorter of the two ways."""
        sequence = check_kind(update, UpdateSequence)
        if sequence.mus is None:
            flags = 0
            values = floats(sequence.values)
        else:
            flags = _TERNARY | (_PER_TENSOR if sequence.mus.shape[1] > 1 else 0)
            signs = np.packbits(sequence.values > 0, bitorder="little")
            values = floats(sequence.mus) + signs.tobytes()
        nested, keys = _encode_keys(sequence)
        if nested:
            flags |= _NESTED
        head = bytes([self.id, flags]) + varint(sequence.num_updates) + varint(sequence.values.size)
        return head + values + keys

    def decode(self, data: bytes, layout: Layout) -> UpdateSequence:
        """Decode the entries, in the order in which they have to be added."""
        reader = open_payload(data, self.id)
        flags = reader.byte()
        useless = flags & _PER_TENSOR and not (flags & _TERNARY and layout.ends.size > 1)
        if flags > _TERNARY | _PER_TENSOR | _NESTED or useless:
            raise DecodeError(f"unknown flags {flags:#04x}")
        num_updates = _read_num_updates(reader)
        count = read_count(reader, layout.size)
        mus = None
        signs = np.empty(0, np.uint8)
        values = np.empty(count, np.float32)
        ends = layout.segments("tensor" if flags & _PER_TENSOR else "model")
        if flags & _TERNARY:
            table = check_floats(reader.floats(num_updates * ends.size), lambda i: f"magnitude {i}")
            mus = table.reshape(num_updates, ends.size)
            signs = reader.bits(count)
        else:
            values = check_floats(reader.floats(count), lambda i: f"entry {i}")
        decode_keys = _decode_nested_keys if flags & _NESTED else _decode_flat_keys
        positions, update_indices = decode_keys(reader, count, layout.size, num_updates)
        if mus is not None and not fill_ternary_values(
            positions, update_indices, signs, mus, ends, values
        ):
            raise DecodeError("a magnitude is not positive, or belongs to no position")
        return UpdateSequence(layout.size, num_updates, positions, update_indices, values, mus)


def _encode_keys(sequence: UpdateSequence) -> tuple[bool, bytes]:
    """Encode the keys in the shorter way; return whether they are nested, and the bytes."""
    positions = sequence.positions
    update_indices = sequence.update_indices
    num_updates = sequence.num_updates
    size = sequence.size
    count = sequence.values.size
    rows = int(count_distinct(positions))
    # Number of codes and size of their domain: of flat keys, of distinct positions, of cells.
    domains = [(count, size * num_updates), (rows, size), (count, rows * num_updates)]
    widths = [golomb_width(*domain) for domain in domains]
    bits = measure_keys(positions, update_indices, num_updates, *widths)
    flat_bytes, position_bytes, cell_bytes = (
        (number * width + 7) // 8 + (quotients + 7) // 8
        for (number, _), width, quotients in zip(domains, widths, bits, strict=True)
    )
    head = varint(rows) + varint(position_bytes)
    if len(head) + position_bytes + cell_bytes >= flat_bytes:
        keys = positions * num_updates + update_indices
        return False, encode_positions(keys, size * num_updates)
    distinct = np.empty(rows, np.int64)
    cells = np.empty(count, np.int64)
    nest_keys(positions, update_indices, num_updates, distinct, cells)
    nested = encode_positions(distinct, size) + encode_positions(cells, rows * num_updates)
    return True, head + nested


def _decode_flat_keys(
    reader: Reader, count: int, size: int, num_updates: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Read the position and the update index of each entry."""
    positions = np.empty(count, np.int64)
    update_indices = np.empty(count, np.int32)
    keys = decode_positions(reader, count, size * num_updates)
    split_keys(keys, num_updates, positions, update_indices)
    return positions, update_indices


def _decode_nested_keys(
    reader: Reader, count: int, size: int, num_updates: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Read the position and the update index of each entry."""
    num_rows = read_count(reader, size)
    if num_rows > count:
        raise DecodeError(f"{num_rows} positions for {count} entries")
    distinct = decode_positions(Reader(reader.take(reader.varint())), num_rows, size)
    rows = np.empty(count, np.int64)
    update_indices = np.empty(count, np.int32)
    cells = decode_positions(reader, count, num_rows * num_updates)
    if split_keys(cells, num_updates, rows, update_indices) != num_rows:
        raise DecodeError("a changed position has no entry")
    return distinct[rows], update_indices


@dataclass(frozen=True)
class SignCountsCodec:
    """Codec of sign counts.

    Format: ``id | updates | step | (count + updates) / 2 with the bits of updates``.
    """

    part_id: ClassVar[str] = "sign_counts"
    id: ClassVar[int] = 7
    name: ClassVar[str] = "sign counts"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode the counts with about log2(num_updates) bits per parameter."""
        sign_counts = check_kind(update, SignCounts)
        width = sign_counts.num_updates.bit_length()
        packed = np.zeros((sign_counts.size * width + 7) // 8, np.uint8)
        pack_levels((sign_counts.counts + np.int32(sign_counts.num_updates)) >> 1, width, packed)
        head = bytes([self.id]) + varint(sign_counts.num_updates) + f32(sign_counts.step)
        return head + packed.tobytes()

    def decode(self, data: bytes, layout: Layout) -> SignCounts:
        """Decode one count per parameter of the layout."""
        reader = open_payload(data, self.id)
        num_updates = _read_num_updates(reader)
        step = reader.f32()
        width = num_updates.bit_length()
        packed = reader.bits(layout.size * width)
        reader.end()
        ups = np.empty(layout.size, np.int32)
        unpack_levels(np.concatenate([packed, np.zeros(8, np.uint8)]), width, ups)
        if layout.size and ups.max() > num_updates:
            raise DecodeError(f"a parameter went up in {ups.max()} of {num_updates} updates")
        return SignCounts(layout.size, num_updates, 2 * ups - np.int32(num_updates), step)


def _read_num_updates(reader: Reader) -> int:
    num_updates = reader.varint()
    if not 0 < num_updates <= MAX_UPDATES:
        raise DecodeError(f"expected between 1 and {MAX_UPDATES} updates, got {num_updates}")
    return num_updates
