"""Sparse updates one after the other: what touches a position, and in which turn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels.compiler import Scalar, jit


@jit
def sparse_merge(
    indices: NDArray[np.int64],
    values: NDArray[np.float32],
    ends: NDArray[np.int64],
    size: Scalar,
    positions: NDArray[np.int64],
    turns: NDArray[np.int32],
    merged: NDArray[np.float32],
) -> None:
    """Sort the touches of several updates by position, those of one position by turn.

    ``indices`` and ``values`` are those of all updates in a row, ``ends`` one past each update's.
    A radix sort is stable, and with few passes several times as fast as one by comparison.
    """
    count = indices.size
    bits = np.int64(1)
    while (size - 1) >> bits:
        bits += 1
    passes = (bits + 10) // 11
    width = (bits + passes - 1) // passes
    mask = (np.int64(1) << width) - 1
    order, sorted_ = np.empty(count, np.int32), np.empty(count, np.int32)
    for j in range(count):
        order[j] = j
    for turn in range(passes):
        shift = turn * width
        places = np.zeros(mask + 2, np.int64)
        for j in range(count):
            places[((indices[j] >> shift) & mask) + 1] += 1
        for digit in range(mask):
            places[digit + 1] += places[digit]
        for j in range(count):
            touch = order[j]
            digit = (indices[touch] >> shift) & mask
            sorted_[places[digit]] = touch
            places[digit] += 1
        order, sorted_ = sorted_, order
    turn_of = np.empty(count, np.int32)
    start = np.int64(0)
    for turn in range(ends.size):
        turn_of[start : ends[turn]] = turn
        start = ends[turn]
    for j in range(count):
        touch = order[j]
        positions[j], turns[j], merged[j] = indices[touch], turn_of[touch], values[touch]


@jit
def count_touched(positions: NDArray[np.int64]) -> Scalar:
    """How many different positions there are among ascending ones."""
    found, previous = np.int64(0), np.int64(-1)
    for j in range(positions.size):
        found += positions[j] != previous
        previous = positions[j]
    return found


@jit
def measure_keys(
    positions: NDArray[np.int64],
    turns: NDArray[np.int32],
    number: Scalar,
    key_width: Scalar,
    place_width: Scalar,
    cell_width: Scalar,
) -> tuple[Scalar, Scalar, Scalar]:
    """The quotients' bits of Golomb-coded keys; of places and of cells, where they are nested."""
    key_bits = cell_bits = np.int64(positions.size)
    place_bits = np.int64(0)
    row, place, last_key, last_cell = np.int64(-1), np.int64(-1), np.int64(-1), np.int64(-1)
    for j in range(positions.size):
        position = positions[j]
        key = position * number + turns[j]
        key_bits += (key - last_key - 1) >> key_width
        last_key = key
        if position != place:
            place_bits += ((position - place - 1) >> place_width) + 1
            place = position
            row += 1
        cell = row * number + turns[j]
        cell_bits += (cell - last_cell - 1) >> cell_width
        last_cell = cell
    return key_bits, place_bits, cell_bits


@jit
def nest_keys(
    positions: NDArray[np.int64],
    turns: NDArray[np.int32],
    number: Scalar,
    touched: NDArray[np.int64],
    cells: NDArray[np.int64],
) -> None:
    """Every position once, and each touch as a cell of the table of those by turns."""
    row, previous = np.int64(-1), np.int64(-1)
    for j in range(positions.size):
        if positions[j] != previous:
            row += 1
            previous = touched[row] = positions[j]
        cells[j] = row * number + turns[j]


@jit
def split_keys(
    keys: NDArray[np.int64],
    number: Scalar,
    rows: NDArray[np.int64],
    turns: NDArray[np.int32],
) -> Scalar:
    """``rows = keys // number`` and ``turns = keys % number``; how many rows differ."""
    # Dividing whole numbers takes most processors several times as long.
    share = 1.0 / number
    found, previous = np.int64(0), np.int64(-1)
    for j in range(keys.size):
        row = np.int64(keys[j] * share)
        turn = keys[j] - row * number
        while turn < 0:
            row, turn = row - 1, turn + number
        while turn >= number:
            row, turn = row + 1, turn - number
        rows[j], turns[j] = row, turn
        found += row != previous
        previous = row
    return found


@jit
def sign_touches(
    positions: NDArray[np.int64],
    turns: NDArray[np.int32],
    signs: NDArray[np.uint8],
    mus: NDArray[np.float32],
    ends: NDArray[np.int64],
    values: NDArray[np.float32],
) -> Scalar:
    """Fill in ``mu`` or ``-mu`` of each touch's turn and segment; eight ``signs`` to a byte.

    False if a magnitude is negative, is zero and has touches, or is not and has none.
    """
    used = np.zeros(mus.shape, np.bool_)
    pair = np.empty(2, np.float32)
    segment = 0
    for j in range(positions.size):
        while positions[j] >= ends[segment]:
            segment += 1
        used[turns[j], segment] = True
        pair[1] = mus[turns[j], segment]
        pair[0] = -pair[1]
        values[j] = pair[(signs[j >> 3] >> (j & 7)) & 1]
    for turn in range(mus.shape[0]):
        for segment in range(mus.shape[1]):
            mu = mus[turn, segment]
            if mu < 0 or (mu > 0) != used[turn, segment]:
                return False
    return True
