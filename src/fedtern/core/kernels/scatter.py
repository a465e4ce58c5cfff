"""Adding updates to a vector, touching only what they touch, and counting signs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels.compiler import jit


@jit
def scatter_add(
    out: NDArray[np.float32],
    indices: NDArray[np.int64],
    values: NDArray[np.float32],
    scale: np.float32,
) -> None:
    """``out[indices] += scale * values``, one after the other where an index repeats."""
    for j in range(indices.size):
        out[indices[j]] += scale * values[j]


@jit
def scatter_signs(
    out: NDArray[np.float32],
    indices: NDArray[np.int64],
    signs: NDArray[np.bool_],
    step: np.float32,
) -> None:
    """``out[indices] += step`` where the sign is True, ``-= step`` where it is not."""
    # Looked up, not chosen: half of the branches would be mispredicted.
    steps = np.empty(2, np.float32)
    steps[0], steps[1] = -step, step
    for j in range(indices.size):
        out[indices[j]] += steps[np.int64(signs[j])]


@jit
def tally(
    weights: NDArray[np.float32],
    base: NDArray[np.float32],
    counts: NDArray[np.int32],
    step: np.float64,
) -> None:
    """``weights = base + step * counts``, rounded once.

    A float32 step times a count below 2**29 is exact in float64, so the result is the same with
    and without fused multiply-add, and does not depend on the order in which counts were added.
    """
    for i in range(weights.size):
        weights[i] = np.float32(np.float64(base[i]) + step * np.float64(counts[i]))


def count_votes(sets: Sequence[NDArray[np.uint8]], size: int) -> NDArray[np.int32]:
    """How often each of ``size`` bits is 1 in several sets, less how often it is 0.

    Bits lie eight to a byte, lowest first.

    >>> count_votes([np.uint8([0b101]), np.uint8([0b100])], 3)
    array([ 0, -2,  2], dtype=int32)
    """
    counts, lanes, words = np.zeros(size, np.int32), np.zeros((size + 7) // 8, np.uint64), _spread()
    for turn, bits in enumerate(sets):
        if bits.size != lanes.size:
            raise ValueError(f"got {8 * bits.size} bits in a set, expected {size}")
        if turn and turn % 255 == 0:  # a lane's bytes hold no more
            add_lanes(counts, lanes)
        add_bits(lanes, bits, words)
    add_lanes(counts, lanes)
    counts *= 2
    counts -= np.int32(len(sets))
    return counts


@cache
def _spread() -> NDArray[np.uint64]:
    """For each byte the word whose bytes are its bits, lowest first."""
    words = np.zeros(256, np.uint64)
    for bit in range(8):
        words |= ((np.arange(256, dtype=np.uint64) >> bit) & 1) << 8 * bit
    return words


@jit
def add_bits(
    lanes: NDArray[np.uint64], bits: NDArray[np.uint8], spread: NDArray[np.uint64]
) -> None:
    """Count bits, eight to a byte: each byte of a lane counts one of them, up to 255 times."""
    for i in range(bits.size):
        lanes[i] += spread[bits[i]]


@jit
def add_lanes(counts: NDArray[np.int32], lanes: NDArray[np.uint64]) -> None:
    """Add what ``add_bits`` counted to one number for each bit, and count from zero again."""
    for i in range(counts.size):
        counts[i] += np.int32((lanes[i >> 3] >> np.uint64(8 * (i & 7))) & np.uint64(0xFF))
    lanes[:] = 0
