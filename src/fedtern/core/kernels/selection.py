"""Exact selection of the k largest magnitudes, in one pass over the vector.

Magnitudes are compared as integers: the bits of a float without its sign. These integers have the
same order as the magnitudes. NaN and infinity are larger than all other values, so they are always
selected. 64 comparisons give one machine word.

The pass collects the values that reach a threshold. If it has collected far more than k, it keeps
the k largest and raises the threshold to the smallest magnitude that can still displace one of
them. So the first threshold does not change the result, unless fewer than k values reach it. Then
the threshold is lowered and the vector is scanned again.
"""

from __future__ import annotations

import math
import struct

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels.backend import kernels

_FLOAT = struct.Struct("<f")
_INT = struct.Struct("<i")
_MAGNITUDE = np.int32(0x7FFFFFFF)
_UNSAFE = ((127 + 100) << 23) + 1  # the smallest magnitude above 2**100
_BLOCK = 64  # values compared together
_SPARE = 1024  # room for candidates in addition to 4 * k
_SAMPLE = 8192  # size of the sample from which a threshold is estimated


def top_k(x: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Return the indices of the k largest magnitudes, ascending.

    Zeros are never selected. Of equal magnitudes, the ones with the lowest indices are selected.

    >>> top_k(np.array([1, -3, 0, 3, -1], np.float32), 3)
    array([0, 1, 3])
    """
    return add_top_k(x, None, k)[0]


def add_top_k(
    x: NDArray[np.float32], y: NDArray[np.float32] | None, k: int, threshold: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Add ``y`` to ``x`` in place, and find the ``top_k`` of the sum.

    Args:
        x: the vector; it is changed unless ``y`` is None.
        y: the vector to add, or None.
        k: the number of values to select.
        threshold: a magnitude that slightly more than k values are expected to reach, or 0. It
            affects the speed only, not the result.

    Returns:
        The indices of the selected values, ascending, and the values.

    Raises:
        ValueError: the vectors have different lengths.

    """
    if y is not None and y.shape != x.shape:
        raise ValueError(f"cannot add a vector of {y.size} values to one of {x.size} values")
    if not x.flags.c_contiguous or not (y is None or y.flags.c_contiguous):
        # The kernels read blocks of consecutive memory.
        if y is not None:
            np.add(x, y, out=x)
            y = None
        x = np.ascontiguousarray(x)
    least: int = _INT.unpack(_FLOAT.pack(threshold))[0]
    if not 0 < least < _UNSAFE:
        least = _estimate_threshold(x, y, k)
    # The operating system provides only the pages of this memory that are written to.
    room = min(4 * k + _SPARE, x.size) + _BLOCK
    found = np.empty(room, np.int64)
    values = np.empty(room, np.float32)
    count = kernels.select(x, y, k, least, found, values)
    while count < k and least > 1:
        # Halving the integer at most 30 times gives 1, the smallest magnitude above zero.
        estimate = _estimate_threshold(x, None, k)
        least = estimate if estimate < least else max(least // 2, 1)
        count = kernels.select(x, None, k, least, found, values)
    return found[:count].copy(), values[:count].copy()


def _estimate_threshold(x: NDArray[np.float32], y: NDArray[np.float32] | None, k: int) -> int:
    """Estimate, from a sample, a threshold that slightly more than k magnitudes reach."""
    step = max(x.size // _SAMPLE, 1)
    sample = x[::step]
    expected = sample.size * k / max(x.size, 1)
    rank = math.ceil(expected + 3 * math.sqrt(expected) + 3)
    if rank >= sample.size or x.size < _SAMPLE:
        return 1
    if y is not None:
        with np.errstate(all="ignore"):  # values that are not finite are reported later
            sample = sample + y[::step]
    magnitudes = sample.view(np.int32) & _MAGNITUDE
    index = magnitudes.size - rank
    return max(int(np.partition(magnitudes, index)[index]), 1)


def summarize(values: NDArray[np.float32], signs: NDArray[np.bool_]) -> tuple[int, float, float]:
    """Describe values that signs and a mean magnitude are to replace; fill in their signs.

    Args:
        values: the values.
        signs: output, True for each value above zero.

    Returns:
        The index of the first value that is NaN, infinite or beyond 2**100, or -1; the least
        magnitude, 0 without values; and the sum of the magnitudes in float64. If there is such an
        index, everything else is unspecified.

    >>> signs = np.empty(3, np.bool_)
    >>> summarize(np.array([1, -3, 2], np.float32), signs), signs
    ((-1, 1.0, 6.0), array([ True, False,  True]))
    """
    return kernels.summarize(values, _UNSAFE, signs)


def first_unsafe(x: NDArray[np.float32]) -> int:
    """Return the index of the first value that is NaN, infinite or beyond 2**100; -1 if none is."""
    return kernels.first_reaching(np.ascontiguousarray(x), _UNSAFE)
