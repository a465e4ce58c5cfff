"""Merge consecutive sparse updates into entries sorted by position.

An entry is the change of one position by one update. Its key is
``position * num_updates + update_index``, where ``update_index`` counts the updates from 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels.compiler import Scalar, jit


@jit
def sort_entries(
    indices: NDArray[np.int64],
    values: NDArray[np.float32],
    ends: NDArray[np.int64],
    size: Scalar,
    positions: NDArray[np.int64],
    update_indices: NDArray[np.int32],
    sorted_values: NDArray[np.float32],
) -> None:
    """Sort the entries of several updates by position, and those of one position by update.

    Uses a radix sort: it is stable, and with few passes several times faster than comparisons.

    Args:
        indices: the positions of all entries, update by update.
        values: the values of all entries, update by update.
        ends: one past the last entry of each update.
        size: all positions are below this.
        positions: output, the position of each entry.
        update_indices: output, the index of each entry's update.
        sorted_values: output, the value of each entry.

    """
    count = indices.size
    bits = np.int64(1)
    while (size - 1) >> bits:
        bits += 1
    passes = (bits + 10) // 11
    width = (bits + passes - 1) // passes
    mask = (np.int64(1) << width) - 1
    order = np.empty(count, np.int32)
    next_order = np.empty(count, np.int32)
    for j in range(count):
        order[j] = j
    for number in range(passes):
        shift = number * width
        starts = np.zeros(mask + 2, np.int64)
        for j in range(count):
            starts[((indices[j] >> shift) & mask) + 1] += 1
        for digit in range(mask):
            starts[digit + 1] += starts[digit]
        for j in range(count):
            entry = order[j]
            digit = (indices[entry] >> shift) & mask
            next_order[starts[digit]] = entry
            starts[digit] += 1
        order, next_order = next_order, order
    update_of = np.empty(count, np.int32)
    start = np.int64(0)
    for update in range(ends.size):
        update_of[start : ends[update]] = update
        start = ends[update]
    for j in range(count):
        entry = order[j]
        positions[j] = indices[entry]
        update_indices[j] = update_of[entry]
        sorted_values[j] = values[entry]


@jit
def count_distinct(positions: NDArray[np.int64]) -> Scalar:
    """Count the distinct values of an ascending array."""
    found = np.int64(0)
    previous = np.int64(-1)
    for j in range(positions.size):
        found += positions[j] != previous
        previous = positions[j]
    return found


@jit
def measure_keys(
    positions: NDArray[np.int64],
    update_indices: NDArray[np.int32],
    num_updates: Scalar,
    key_width: Scalar,
    position_width: Scalar,
    cell_width: Scalar,
) -> tuple[Scalar, Scalar, Scalar]:
    """Measure both ways to write the keys of entries as Golomb codes.

    Returns:
        The bits of the quotients of the keys; and for nested keys, of the distinct positions and
        of the cells (see ``nest_keys``).

    """
    key_bits = cell_bits = np.int64(positions.size)
    position_bits = np.int64(0)
    row = np.int64(-1)
    last_position = np.int64(-1)
    last_key = np.int64(-1)
    last_cell = np.int64(-1)
    for j in range(positions.size):
        position = positions[j]
        key = position * num_updates + update_indices[j]
        key_bits += (key - last_key - 1) >> key_width
        last_key = key
        if position != last_position:
            position_bits += ((position - last_position - 1) >> position_width) + 1
            last_position = position
            row += 1
        cell = row * num_updates + update_indices[j]
        cell_bits += (cell - last_cell - 1) >> cell_width
        last_cell = cell
    return key_bits, position_bits, cell_bits


@jit
def nest_keys(
    positions: NDArray[np.int64],
    update_indices: NDArray[np.int32],
    num_updates: Scalar,
    distinct: NDArray[np.int64],
    cells: NDArray[np.int64],
) -> None:
    """Split the keys of entries into distinct positions and cells.

    A cell is an index into a table with one row per distinct position and one column per update.

    Args:
        positions: the position of each entry, ascending.
        update_indices: the index of each entry's update.
        num_updates: the number of updates.
        distinct: output, the distinct positions.
        cells: output, the cell of each entry.

    """
    row = np.int64(-1)
    previous = np.int64(-1)
    for j in range(positions.size):
        if positions[j] != previous:
            row += 1
            previous = distinct[row] = positions[j]
        cells[j] = row * num_updates + update_indices[j]


@jit
def split_keys(
    keys: NDArray[np.int64],
    num_updates: Scalar,
    rows: NDArray[np.int64],
    update_indices: NDArray[np.int32],
) -> Scalar:
    """Compute ``rows = keys // num_updates`` and ``update_indices = keys % num_updates``.

    Returns:
        The number of distinct rows.

    """
    # Integer division is several times slower than multiplication on most processors. The product
    # is rounded, so the loops below correct the quotient.
    reciprocal = 1.0 / num_updates
    found = np.int64(0)
    previous = np.int64(-1)
    for j in range(keys.size):
        row = np.int64(keys[j] * reciprocal)
        remainder = keys[j] - row * num_updates
        while remainder < 0:
            row -= 1
            remainder += num_updates
        while remainder >= num_updates:
            row += 1
            remainder -= num_updates
        rows[j] = row
        update_indices[j] = remainder
        found += row != previous
        previous = row
    return found


@jit
def fill_ternary_values(
    positions: NDArray[np.int64],
    update_indices: NDArray[np.int32],
    signs: NDArray[np.uint8],
    mus: NDArray[np.float32],
    ends: NDArray[np.int64],
    values: NDArray[np.float32],
) -> Scalar:
    """Fill ``values`` with plus or minus the magnitude of each entry's update and segment.

    Args:
        positions: the position of each entry, ascending.
        update_indices: the index of each entry's update.
        signs: one bit per entry, eight per byte, lowest first; 1 for plus.
        mus: magnitudes by update and segment.
        ends: one past the last position of each segment.
        values: output, the value of each entry.

    Returns:
        False if a magnitude is negative, is zero although it has entries, or is positive although
        it has none.

    """
    used = np.zeros(mus.shape, np.bool_)
    pair = np.empty(2, np.float32)
    segment = 0
    for j in range(positions.size):
        while positions[j] >= ends[segment]:
            segment += 1
        used[update_indices[j], segment] = True
        pair[1] = mus[update_indices[j], segment]
        pair[0] = -pair[1]
        values[j] = pair[(signs[j >> 3] >> (j & 7)) & 1]
    for update in range(mus.shape[0]):
        for segment in range(mus.shape[1]):
            mu = mus[update, segment]
            if mu < 0 or (mu > 0) != used[update, segment]:
                return False
    return True
