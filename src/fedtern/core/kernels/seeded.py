"""Random choices from a shared seed, identical on every machine and in every language.

Number i of a seed is output i (from 0) of SplitMix64. It depends on the seed and i only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels.compiler import Scalar, jit

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@jit
def _splitmix64(seed: Scalar, i: Scalar) -> Scalar:
    """Return output i of SplitMix64."""
    z = np.uint64(seed) + (np.uint64(i) + np.uint64(1)) * _STEP
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@jit
def sample_positions(seed: np.uint64, size: Scalar, positions: NDArray[np.int64]) -> None:
    """Fill ``positions`` with a random subset of ``range(size)``, ascending.

    Position i is taken with probability (positions still to take) / (size - i), which makes every
    subset equally likely.
    """
    taken = 0
    for i in range(size):
        if taken == positions.size:
            break
        uniform = np.float64(_splitmix64(seed, i) >> np.uint64(11)) * 2.0**-53
        if uniform * (size - i) < positions.size - taken:
            positions[taken] = i
            taken += 1


@jit
def random_signs(seed: np.uint64, first: Scalar, signs: NDArray[np.float32]) -> None:
    """Fill ``signs`` with 1 and -1: the top bits of the seed's numbers from ``first`` on."""
    for i in range(signs.size):
        top = _splitmix64(seed, np.int64(first) + i) >> np.uint64(63)
        signs[i] = np.float32(1.0) if top else np.float32(-1.0)


@jit
def rotate(x: NDArray[np.float32]) -> None:
    """Multiply by the normalised Hadamard matrix, in place; the transform is its own inverse.

    The length of ``x`` must be a power of two.
    """
    half = 1
    while half < x.size:
        for start in range(0, x.size, 2 * half):
            for i in range(start, start + half):
                a = x[i]
                b = x[i + half]
                x[i] = a + b
                x[i + half] = a - b
        half *= 2
    factor = np.float32(1.0 / np.sqrt(np.float64(x.size)))
    for i in range(x.size):
        x[i] *= factor
