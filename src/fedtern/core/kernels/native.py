"""The compiled kernels, with the interface of ``reference``, which documents the functions.

This module allocates scratch memory, because the C library in ``native/`` allocates none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels import compiled
from fedtern.core.kernels.reference import Integer

NAME = "native"

_VERSION = "1.3"
if compiled.version != _VERSION:
    raise ImportError(
        f"the compiled kernels have version {compiled.version}, expected {_VERSION}; install the"
        " package again"
    )

_SORT_SCRATCH = 2050

select = compiled.select_largest
first_reaching = compiled.first_reaching
summarize = compiled.summarize
encode_gaps = compiled.encode_gaps
decode_gaps = compiled.decode_gaps
pack_levels = compiled.pack_levels
unpack_levels = compiled.unpack_levels
measure_levels = compiled.measure_levels
encode_levels = compiled.encode_levels
decode_levels = compiled.decode_levels
scatter_add = compiled.scatter_add
scatter_signs = compiled.scatter_signs
apply_sign_counts = compiled.apply_sign_counts
add_bits = compiled.add_bits
add_lanes = compiled.add_lanes
rotate = compiled.rotate
count_distinct = compiled.count_distinct
measure_keys = compiled.measure_keys
nest_keys = compiled.nest_keys
split_keys = compiled.split_keys


def encode_adaptive(
    positions: NDArray[np.int64],
    magnitudes: NDArray[np.int32],
    largest: int,
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> int:
    """Write positions and small integers as adaptive binary decisions; return the length."""
    scratch = np.empty(compiled.adaptive_scratch(ends, rows), np.uint32)
    length: int = compiled.encode_adaptive(positions, magnitudes, largest, ends, rows, scratch, out)
    return length


def decode_adaptive(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    magnitudes: NDArray[np.int32],
    largest: int,
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> int:
    """Read positions and small integers; return the length, or -1 for an invalid stream."""
    scratch = np.empty(compiled.adaptive_scratch(ends, rows), np.uint32)
    length: int = compiled.decode_adaptive(
        data, positions, magnitudes, largest, ends, rows, scratch
    )
    return length


def sort_entries(
    indices: NDArray[np.int64],
    values: NDArray[np.float32],
    ends: NDArray[np.int64],
    size: int,
    positions: NDArray[np.int64],
    update_indices: NDArray[np.int32],
    sorted_values: NDArray[np.float32],
) -> None:
    """Sort the entries of several updates by position, and those of one position by update."""
    order = np.empty(indices.size, np.int32)
    swap = np.empty(indices.size, np.int32)
    counters = np.empty(_SORT_SCRATCH, np.int64)
    compiled.sort_entries(
        indices, values, ends, size, positions, update_indices, sorted_values, order, swap, counters
    )


def fill_ternary_values(
    positions: NDArray[np.int64],
    update_indices: NDArray[np.int32],
    signs: NDArray[np.uint8],
    mus: NDArray[np.float32],
    ends: NDArray[np.int64],
    values: NDArray[np.float32],
) -> bool:
    """Fill ``values`` with signed magnitudes; return whether the magnitudes are valid."""
    used = np.zeros(mus.size, np.uint8)
    valid: bool = compiled.fill_ternary_values(
        positions, update_indices, signs, mus, ends, used, values
    )
    return valid


def sample_positions(seed: Integer, size: int, positions: NDArray[np.int64]) -> None:
    """Fill ``positions`` with a random subset of ``range(size)``, ascending."""
    compiled.sample_positions(int(seed), size, positions)


def random_signs(seed: Integer, first: int, signs: NDArray[np.float32]) -> None:
    """Fill ``signs`` with 1 and -1: the top bits of the seed's numbers from ``first`` on."""
    compiled.random_signs(int(seed), first, signs)
