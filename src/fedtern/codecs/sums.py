"""Several rounds' updates as one: what a client that was away downloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.codecs.codec import expect, open_payload
from fedtern.codecs.golomb import decode_positions, encode_positions, read_count
from fedtern.errors import DecodeError
from fedtern.kernels import pack_levels, unpack_levels
from fedtern.layout import Layout, Vector
from fedtern.sums import Series, Tally
from fedtern.updates import Update, segment_of
from fedtern.wire import Reader, check_floats, f32, floats, varint

_TERNARY, _PER_TENSOR, _NESTED = 1, 2, 4
_MOST_TURNS = 1 << 24


@dataclass(frozen=True)
class SeriesCodec:
    """``id | flags | turns | touches | magnitudes and signs, or values | keys``.

    A key is ``position * turns + turn``. Keys are written like positions in a vector of
    ``size * turns``, or (flag "nested", where rounds often touch the same positions) as the
    touched positions, each once, and then like positions in the table of those by turns.
    """

    id: ClassVar[int] = 6
    name: ClassVar[str] = "series"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """The shorter of the two ways to write the keys."""
        series = expect(update, Series)
        flags, values = 0, floats(series.values)
        if series.mus is not None:
            flags = _TERNARY | (_PER_TENSOR if series.mus.shape[1] > 1 else 0)
            signs = np.packbits(series.values > 0, bitorder="little")
            values = floats(series.mus) + signs.tobytes()
        keys = encode_positions(series.keys, series.size * series.turns)
        nested = _encode_nested(series)
        if len(nested) < len(keys):
            flags, keys = flags | _NESTED, nested
        head = bytes([self.id, flags]) + varint(series.turns) + varint(series.keys.size)
        return head + values + keys

    def decode(self, data: bytes, layout: Layout) -> Series:
        """Touches in the order in which they have to be added."""
        reader = open_payload(data, self.id)
        flags = reader.byte()
        lone = flags & _PER_TENSOR and not (flags & _TERNARY and layout.ends.size > 1)
        if flags > _TERNARY | _PER_TENSOR | _NESTED or lone:
            raise DecodeError(f"unknown flags {flags:#04x}")
        turns = _read_turns(reader)
        count = read_count(reader, layout.size)
        mus = signs = values = None
        ends = layout.segments("tensor" if flags & _PER_TENSOR else "model")
        if flags & _TERNARY:
            table = check_floats(reader.floats(turns * ends.size), lambda i: f"magnitude {i}")
            mus = table.reshape(turns, ends.size)
            packed = reader.bits(count)
            signs = np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
        else:
            values = check_floats(reader.floats(count), lambda i: f"touch {i}")
        read_keys = _decode_nested if flags & _NESTED else _decode_flat
        keys = read_keys(reader, count, layout.size, turns)
        if mus is not None and signs is not None:
            values = _signed(mus, signs, keys, ends)
        assert values is not None  # one of the two branches above
        return Series(layout.size, turns, keys, values, mus)


def _signed(
    mus: Vector, signs: NDArray[np.bool_], keys: NDArray[np.int64], ends: NDArray[np.int64]
) -> Vector:
    """The value of each touch of ternary updates, from their table of magnitudes."""
    turns, segments = mus.shape
    cells = keys % turns  # of the table, row by row
    if segments > 1:
        cells = cells * segments + segment_of(keys // turns, ends)
    table = mus.reshape(-1)
    used = np.bincount(cells, minlength=table.size) > 0
    if not np.array_equal(table > 0, used) or (table < 0).any():
        raise DecodeError("a magnitude is not positive, or belongs to no position")
    magnitudes = table[cells]
    values: Vector = np.where(signs, magnitudes, -magnitudes)
    return values


def _encode_nested(series: Series) -> bytes:
    positions = series.positions
    first = np.diff(positions, prepend=-1) > 0  # they ascend: no need to sort, as np.unique would
    touched, row = positions[first], np.cumsum(first) - 1
    places = encode_positions(touched, series.size)
    cells = row * series.turns + series.keys % series.turns
    head = varint(touched.size) + varint(len(places)) + places
    return head + encode_positions(cells, touched.size * series.turns)


def _decode_flat(reader: Reader, count: int, size: int, turns: int) -> NDArray[np.int64]:
    return decode_positions(reader, count, size * turns)


def _decode_nested(reader: Reader, count: int, size: int, turns: int) -> NDArray[np.int64]:
    rows = read_count(reader, size)
    if rows > count:
        raise DecodeError(f"{rows} positions for {count} touches")
    touched = decode_positions(Reader(reader.take(reader.varint())), rows, size)
    cells = decode_positions(reader, count, rows * turns)
    row = cells // turns
    if np.count_nonzero(np.diff(row, prepend=-1)) != rows:
        raise DecodeError("a touched position without a touch")
    keys: NDArray[np.int64] = touched[row] * turns + cells % turns
    return keys


@dataclass(frozen=True)
class TallyCodec:
    """``id | turns | step | (count + turns) / 2 at the bits that ``turns`` takes``."""

    id: ClassVar[int] = 7
    name: ClassVar[str] = "tally"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """At most log2(2 turns + 1) bits a parameter."""
        tally = expect(update, Tally)
        width = tally.turns.bit_length()
        packed = np.zeros((tally.size * width + 7) // 8, np.uint8)
        pack_levels((tally.counts + np.int32(tally.turns)) >> 1, width, packed)
        return bytes([self.id]) + varint(tally.turns) + f32(tally.step) + packed.tobytes()

    def decode(self, data: bytes, layout: Layout) -> Tally:
        """As many counts as the layout has parameters."""
        reader = open_payload(data, self.id)
        turns = _read_turns(reader)
        step = reader.f32()
        width = turns.bit_length()
        packed = reader.bits(layout.size * width)
        reader.end()
        levels = np.empty(layout.size, np.int32)
        unpack_levels(np.concatenate([packed, np.zeros(8, np.uint8)]), width, levels)
        if layout.size and levels.max() > turns:
            raise DecodeError(f"a parameter went up in {levels.max()} of {turns} rounds")
        return Tally(layout.size, turns, 2 * levels - np.int32(turns), step)


def _read_turns(reader: Reader) -> int:
    turns = reader.varint()
    if not 0 < turns <= _MOST_TURNS:
        raise DecodeError(f"expected between 1 and {_MOST_TURNS} rounds, got {turns}")
    return turns
