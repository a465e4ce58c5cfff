"""Add sparse updates to a vector, and count signs."""

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
    """Compute ``out[indices] += scale * values``, one by one in order if an index repeats."""
    for j in range(indices.size):
        out[indices[j]] += scale * values[j]


@jit
def scatter_signs(
    out: NDArray[np.float32],
    indices: NDArray[np.int64],
    signs: NDArray[np.bool_],
    step: np.float32,
) -> None:
    """Compute ``out[indices] += step`` where the sign is True, ``-= step`` where it is False."""
    # A table instead of a branch: the processor would mispredict half of the branches.
    steps = np.empty(2, np.float32)
    steps[0] = -step
    steps[1] = step
    for j in range(indices.size):
        out[indices[j]] += steps[np.int64(signs[j])]


@jit
def apply_sign_counts(
    weights: NDArray[np.float32],
    base: NDArray[np.float32],
    counts: NDArray[np.int32],
    step: np.float64,
) -> None:
    """Compute ``weights = base + step * counts``, rounded once.

    A float32 step times a count below 2**29 is exact in float64. So the result is the same with
    and without fused multiply-add, and does not depend on the order in which counts were added.
    """
    for i in range(weights.size):
        weights[i] = np.float32(np.float64(base[i]) + step * np.float64(counts[i]))


def count_votes(sets: Sequence[NDArray[np.uint8]], size: int) -> NDArray[np.int32]:
    """Count the ones minus the zeros at each of ``size`` bit positions of several bit sets.

    Each set has eight bits per byte, lowest bit first.

    >>> count_votes([np.uint8([0b101]), np.uint8([0b100])], 3)
    array([ 0, -2,  2], dtype=int32)

    Raises:
        ValueError: a set does not have ``size`` bits.

    """
    counts = np.zeros(size, np.int32)
    lanes = np.zeros((size + 7) // 8, np.uint64)
    words = _bits_to_bytes()
    for i, bits in enumerate(sets):
        if bits.size != lanes.size:
            raise ValueError(f"got {8 * bits.size} bits in a set, expected {size}")
        if i and i % 255 == 0:  # a byte of a lane counts up to 255
            add_lanes(counts, lanes)
        add_bits(lanes, bits, words)
    add_lanes(counts, lanes)
    counts *= 2
    counts -= np.int32(len(sets))
    return counts


@cache
def _bits_to_bytes() -> NDArray[np.uint64]:
    """Return a table that maps a byte to the word whose bytes are its bits, lowest first."""
    words = np.zeros(256, np.uint64)
    for bit in range(8):
        words |= ((np.arange(256, dtype=np.uint64) >> bit) & 1) << 8 * bit
    return words


@jit
def add_bits(lanes: NDArray[np.uint64], bits: NDArray[np.uint8], words: NDArray[np.uint64]) -> None:
    """Count the ones in ``bits``: byte j of lane i counts bit j of byte i, up to 255."""
    for i in range(bits.size):
        lanes[i] += words[bits[i]]


@jit
def add_lanes(counts: NDArray[np.int32], lanes: NDArray[np.uint64]) -> None:
    """Add the counts of ``add_bits`` to ``counts`` and reset the lanes to zero."""
    for i in range(counts.size):
        counts[i] += np.int32((lanes[i >> 3] >> np.uint64(8 * (i & 7))) & np.uint64(0xFF))
    lanes[:] = 0
