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

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels.compiler import Scalar, jit, threshold_mask, trailing_zeros

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
    least = int(np.float32(threshold).view(np.int32))
    if not 0 < least < _UNSAFE:
        least = _estimate_threshold(x, y, k)
    # The operating system provides only the pages of this memory that are written to.
    room = min(4 * k + _SPARE, x.size) + _BLOCK
    found = np.empty(room, np.int64)
    values = np.empty(room, np.float32)
    count = _select(x, y, k, least, found, values)
    while count < k and least > 1:
        # Halving the integer at most 30 times gives 1, the smallest magnitude above zero.
        estimate = _estimate_threshold(x, None, k)
        least = estimate if estimate < least else max(least // 2, 1)
        count = _select(x, None, k, least, found, values)
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


@jit
def _magnitude(value: Scalar) -> Scalar:
    """Return the bits of a float without its sign, as an integer."""
    return np.float32(value).view(np.int32) & _MAGNITUDE


@jit
def _select(
    x: NDArray[np.float32],
    y: NDArray[np.float32] | None,
    k: Scalar,
    threshold: Scalar,
    found: NDArray[np.int64],
    values: NDArray[np.float32],
) -> Scalar:
    """Find the k largest of the values that reach a threshold.

    Returns:
        The number of values found, at most k.

    """
    at = np.int64(0)
    count = np.int64(0)
    reached = np.int32(threshold)
    while True:
        at, count = _scan(x, y, at, reached, found, values, count)
        if count > k:
            least = _kth(values, count, k)
            _keep(found, values, count, least, k)
            count = np.int64(k)
            # A later value of equal magnitude loses the tie, so only larger ones matter.
            reached = np.int32(min(least, np.int64(_MAGNITUDE) - 1) + 1)
        if at == x.size:
            return count


@jit
def _scan(
    x: NDArray[np.float32],
    y: NDArray[np.float32] | None,
    at: Scalar,
    threshold: Scalar,
    found: NDArray[np.int64],
    values: NDArray[np.float32],
    count: Scalar,
) -> tuple[Scalar, Scalar]:
    """Append the values from ``at`` on that reach the threshold, until the buffers are almost full.

    Stops if there might be no room for another block. Also adds ``y`` to the scanned part of ``x``.

    Args:
        x: the vector.
        y: the vector to add, or None.
        at: where to start.
        threshold: the threshold.
        found: indices found so far.
        values: values found so far.
        count: the number of values found so far.

    Returns:
        Where the scan stopped, and the new count.

    """
    at = np.int64(at)
    count = np.int64(count)
    full = found.size - _BLOCK
    while at + _BLOCK <= x.size and count <= full:
        hits = threshold_mask(x, y, at, threshold)
        # Always write the first hit, and count it only if there is one: no branch to mispredict.
        index = at + (np.int64(trailing_zeros(hits)) & (_BLOCK - 1))
        found[count] = index
        values[count] = x[index]
        count += np.int64(hits != np.uint64(0))
        hits &= hits - np.uint64(1)
        while hits != np.uint64(0):
            index = at + np.int64(trailing_zeros(hits))
            found[count] = index
            values[count] = x[index]
            count += 1
            hits &= hits - np.uint64(1)
        at += _BLOCK
    if count <= full:
        while at < x.size:
            if y is not None:
                x[at] += y[at]
            if _magnitude(x[at]) >= threshold:
                found[count] = at
                values[count] = x[at]
                count += 1
            at += 1
    return at, count


@jit
def _kth(values: NDArray[np.float32], count: Scalar, k: Scalar) -> Scalar:
    """Return the k-th largest of the first ``count`` magnitudes, found eleven bits at a time."""
    known = np.int64(0)
    rank = np.int64(k)
    for shift in range(22, -1, -11):
        counts = np.zeros(2048, np.int64)
        for i in range(count):
            magnitude = np.int64(_magnitude(values[i]))
            counts[(magnitude >> shift) & 2047] += np.int64(magnitude >> (shift + 11) == known)
        digit = np.int64(2047)
        while rank > counts[digit]:
            rank -= counts[digit]
            digit -= 1
        known = (known << 11) | digit
    return known


@jit
def _keep(
    found: NDArray[np.int64],
    values: NDArray[np.float32],
    count: Scalar,
    least: Scalar,
    k: Scalar,
) -> None:
    """Move the k largest to the front, in their order; ``least`` is the smallest of them.

    Unlike the paper: its mask ``|T| >= v`` keeps every tie, so more than k entries.
    """
    ties = np.int64(k)
    for i in range(count):
        ties -= np.int64(_magnitude(values[i]) > least)
    kept = np.int64(0)
    for i in range(count):
        magnitude = _magnitude(values[i])
        tie = np.int64(magnitude == least)
        found[kept] = found[i]
        values[kept] = values[i]
        kept += np.int64(magnitude > least) + tie * np.int64(ties > 0)
        ties -= tie


def first_unsafe(x: NDArray[np.float32]) -> int:
    """Return the index of the first value that is NaN, infinite or beyond 2**100; -1 if none is."""
    return int(_first_reaching(np.ascontiguousarray(x), _UNSAFE))


@jit
def _first_reaching(x: NDArray[np.float32], threshold: Scalar) -> Scalar:
    """Return the index of the first magnitude that reaches a threshold; -1 if none does."""
    whole = x.size - x.size % _BLOCK
    for start in range(0, whole, _BLOCK):
        hits = threshold_mask(x, None, start, threshold)
        if hits != np.uint64(0):
            return start + np.int64(trailing_zeros(hits))
    for i in range(whole, x.size):
        if _magnitude(x[i]) >= threshold:
            return i
    return -1
