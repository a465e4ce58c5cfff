"""Exact selection of the k largest magnitudes, in little more than one pass over the vector.

Magnitudes are compared as the integers their bits spell: for floats without their sign that is
the same order, it sorts NaN and infinity above everything (so that they are always found), and
it vectorises.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedtern.kernels.compiler import Scalar, jit

_MAGNITUDE = np.int32(0x7FFFFFFF)
_UNSAFE = np.int32(((127 + 100) << 23) + 1)  # the smallest magnitude above 2**100
_BLOCK, _PART = 64, 8  # values looked at together; only a part with a hit is looked at singly
_SAMPLE = 8192  # values that the first threshold is guessed from


def top_k(x: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Indices of the min(k, nonzeros) largest magnitudes, ascending; ties go to the lowest index.

    >>> top_k(np.array([1, -3, 0, 3, -1], np.float32), 3)
    array([0, 1, 3])
    """
    found = np.empty(x.size, np.int64)  # its pages exist only once they are written to
    threshold = _guess(x, k)
    count = _scan(x, threshold, found)
    while count < k and threshold > 1:
        # Halving the bits takes the square root of the magnitude's scale: 1 is soon reached.
        threshold = max(threshold // 2, np.int32(1))
        count = _scan(x, threshold, found)
    candidates = found[:count]
    if count <= k:
        return candidates.copy()
    magnitudes = x[candidates].view(np.int32) & _MAGNITUDE
    kth = np.partition(magnitudes, count - k)[count - k]
    keep = magnitudes > kth
    ties = np.flatnonzero(magnitudes == kth)
    # Unlike the paper: its mask |T| >= v keeps every tie, so more than k entries.
    keep[ties[: k - int(keep.sum())]] = True
    kept: NDArray[np.int64] = candidates[keep]
    return kept


def _guess(x: NDArray[np.float32], k: int) -> Scalar:
    """A threshold that a few more than k magnitudes are likely to reach."""
    sample = x[:: x.size // _SAMPLE] if x.size > _SAMPLE else x[:0]
    expected = sample.size * k / max(x.size, 1)
    rank = math.ceil(expected + 3 * math.sqrt(expected) + 3)
    if rank >= sample.size:
        return np.int32(1)
    magnitudes = sample.view(np.int32) & _MAGNITUDE
    return max(np.partition(magnitudes, sample.size - rank)[sample.size - rank], np.int32(1))


@jit
def _reaches(value: Scalar, threshold: Scalar) -> Scalar:
    return (np.float32(value).view(np.int32) & _MAGNITUDE) >= threshold


@jit
def _scan(x: NDArray[np.float32], threshold: Scalar, found: NDArray[np.int64]) -> Scalar:
    """Write the indices of magnitudes >= threshold to ``found`` and return how many there are.

    The trip counts of the inner loops are constants, or they would not be vectorised.
    """
    count: Scalar = 0
    whole = x.size - x.size % _BLOCK
    for start in range(0, whole, _BLOCK):
        hit = np.int32(0)
        for i in range(start, start + _BLOCK):
            hit |= np.int32(_reaches(x[i], threshold))
        if not hit:
            continue
        for part in range(start, start + _BLOCK, _PART):
            hit = np.int32(0)
            for i in range(part, part + _PART):
                hit |= np.int32(_reaches(x[i], threshold))
            if hit:
                for i in range(part, part + _PART):
                    # Written always, kept only by a hit: no branch to mispredict.
                    found[count] = i
                    count += np.int64(_reaches(x[i], threshold))
    for i in range(whole, x.size):
        if _reaches(x[i], threshold):
            found[count] = i
            count += 1
    return count


def first_unsafe(x: NDArray[np.float32]) -> int:
    """Index of the first value that is NaN, infinite or beyond 2**100; -1 if there is none."""
    found = np.empty(x.size, np.int64)
    return int(found[0]) if _scan(x, _UNSAFE, found) else -1
