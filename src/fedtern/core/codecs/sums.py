"""Several rounds' updates as one: what a client that was away downloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.codecs.codec import expect, open_payload
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
from fedtern.core.updates.sums import MOST_TURNS, SignCounts, UpdateSequence
from fedtern.core.wire import Reader, check_floats, f32, floats, varint

_TERNARY, _PER_TENSOR, _NESTED = 1, 2, 4


@dataclass(frozen=True)
class UpdateSequenceCodec:
    """``id | flags | turns | touches | magnitudes and signs, or values | keys``.

    A key is ``position * turns + turn``. Keys are written like positions in a vector of
    ``size * turns``, or (flag "nested", where rounds often touch the same positions) as the
    touched positions, each once, and then like positions in the table of those by turns.
    """

    part_id: ClassVar[str] = "update_sequence"
    id: ClassVar[int] = 6
    name: ClassVar[str] = "series"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """The shorter of the two ways to write the keys."""
        series = expect(update, UpdateSequence)
        if series.mus is None:
            flags, values = 0, floats(series.values)
        else:
            flags = _TERNARY | (_PER_TENSOR if series.mus.shape[1] > 1 else 0)
            signs = np.packbits(series.values > 0, bitorder="little")
            values = floats(series.mus) + signs.tobytes()
        nested, keys = _encode_keys(series)
        flags |= _NESTED if nested else 0
        head = bytes([self.id, flags]) + varint(series.turns) + varint(series.values.size)
        return head + values + keys

    def decode(self, data: bytes, layout: Layout) -> UpdateSequence:
        """Touches in the order in which they have to be added."""
        reader = open_payload(data, self.id)
        flags = reader.byte()
        lone = flags & _PER_TENSOR and not (flags & _TERNARY and layout.ends.size > 1)
        if flags > _TERNARY | _PER_TENSOR | _NESTED or lone:
            raise DecodeError(f"unknown flags {flags:#04x}")
        turns = _read_turns(reader)
        count = read_count(reader, layout.size)
        mus, packed, values = None, np.empty(0, np.uint8), np.empty(count, np.float32)
        ends = layout.segments("tensor" if flags & _PER_TENSOR else "model")
        if flags & _TERNARY:
            table = check_floats(reader.floats(turns * ends.size), lambda i: f"magnitude {i}")
            mus = table.reshape(turns, ends.size)
            packed = reader.bits(count)
        else:
            values = check_floats(reader.floats(count), lambda i: f"touch {i}")
        read_keys = _decode_nested if flags & _NESTED else _decode_flat
        places = read_keys(reader, count, layout.size, turns)
        if mus is not None and not fill_ternary_values(*places, packed, mus, ends, values):
            raise DecodeError("a magnitude is not positive, or belongs to no position")
        return UpdateSequence(layout.size, turns, *places, values, mus)


_Places = tuple[NDArray[np.int64], NDArray[np.int32]]  # position and turn of each touch


def _encode_keys(series: UpdateSequence) -> tuple[bool, bytes]:
    """The shorter of the two ways, and whether it is the nested one."""
    size, turns, count = series.size, series.turns, series.values.size
    rows = int(count_distinct(series.positions))
    domains = (count, size * turns), (rows, size), (count, rows * turns)
    widths = [golomb_width(*domain) for domain in domains]
    bits = measure_keys(series.positions, series.turn, turns, *widths)
    flat, places, cells = (
        (number * width + 7) // 8 + (quotients + 7) // 8
        for (number, _), width, quotients in zip(domains, widths, bits, strict=True)
    )
    head = varint(rows) + varint(places)
    if len(head) + places + cells >= flat:
        return False, encode_positions(series.positions * turns + series.turn, size * turns)
    touched, table = np.empty(rows, np.int64), np.empty(count, np.int64)
    nest_keys(series.positions, series.turn, turns, touched, table)
    return True, head + encode_positions(touched, size) + encode_positions(table, rows * turns)


def _decode_flat(reader: Reader, count: int, size: int, turns: int) -> _Places:
    rows, turn = np.empty(count, np.int64), np.empty(count, np.int32)
    split_keys(decode_positions(reader, count, size * turns), turns, rows, turn)
    return rows, turn


def _decode_nested(reader: Reader, count: int, size: int, turns: int) -> _Places:
    number = read_count(reader, size)
    if number > count:
        raise DecodeError(f"{number} positions for {count} touches")
    touched = decode_positions(Reader(reader.take(reader.varint())), number, size)
    rows, turn = np.empty(count, np.int64), np.empty(count, np.int32)
    cells = decode_positions(reader, count, number * turns)
    if split_keys(cells, turns, rows, turn) != number:
        raise DecodeError("a touched position without a touch")
    return touched[rows], turn


@dataclass(frozen=True)
class SignCountsCodec:
    """``id | turns | step | (count + turns) / 2 at the bits that ``turns`` takes``."""

    part_id: ClassVar[str] = "sign_counts"
    id: ClassVar[int] = 7
    name: ClassVar[str] = "tally"

    def encode(self, update: Update, layout: Layout) -> bytes:
        """At most log2(2 turns + 1) bits a parameter."""
        tally = expect(update, SignCounts)
        width = tally.turns.bit_length()
        packed = np.zeros((tally.size * width + 7) // 8, np.uint8)
        pack_levels((tally.counts + np.int32(tally.turns)) >> 1, width, packed)
        return bytes([self.id]) + varint(tally.turns) + f32(tally.step) + packed.tobytes()

    def decode(self, data: bytes, layout: Layout) -> SignCounts:
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
        return SignCounts(layout.size, turns, 2 * levels - np.int32(turns), step)


def _read_turns(reader: Reader) -> int:
    turns = reader.varint()
    if not 0 < turns <= MOST_TURNS:
        raise DecodeError(f"expected between 1 and {MOST_TURNS} rounds, got {turns}")
    return turns
