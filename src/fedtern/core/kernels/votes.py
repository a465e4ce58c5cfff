"""Count the signs of several clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels.backend import kernels


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
    for i, bits in enumerate(sets):
        if bits.size != lanes.size:
            raise ValueError(f"got {8 * bits.size} bits in a set, expected {size}")
        if i and i % 255 == 0:  # a byte of a lane counts up to 255
            kernels.add_lanes(counts, lanes)
        kernels.add_bits(lanes, bits)
    kernels.add_lanes(counts, lanes)
    counts *= 2
    counts -= np.int32(len(sets))
    return counts
