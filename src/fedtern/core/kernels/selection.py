"""Exact selection of the k largest magnitudes, in one pass over the vector.

Magnitudes are compared as the integers their bits spell: for floats without their sign that is
the same order, it sorts NaN and infinity above everything (so that they are always found), and
64 comparisons end up in one machine word.

The pass collects what reaches a threshold. Whenever it has collected far more than k, all but the
k largest are dropped and the threshold rises to what can still displace one of them: whatever the
first threshold is, the result is the same unless fewer than k values reach it. Then, which costs
another pass, it is lowered.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels.compiler import Scalar, jit, reaching, trailing_zeros

_MAGNITUDE = np.int32(0x7FFFFFFF)
_UNSAFE = ((127 + 100) << 23) + 1  # the smallest magnitude above 2**100
_BLOCK = 64  # values that are compared together
_SPARE = 1024  # candidates that there is room for besides four times as many as are wanted
_SAMPLE = 8192  # values that a threshold is guessed from


def top_k(x: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Indices of the min(k, nonzeros) largest magnitudes, ascending; ties go to the lowest index.

    >>> top_k(np.array([1, -3, 0, 3, -1], np.float32), 3)
    array([0, 1, 3])
    """
    return add_top_k(x, None, k)[0]


def add_top_k(
    x: NDArray[np.float32], y: NDArray[np.float32] | None, k: int, threshold: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """``x += y`` unless that is None, and ``top_k`` of the sum with the values found there.

    ``threshold`` is a magnitude that a few more than k values may reach, 0 if none is known; it
    changes how long this takes, and nothing else.
    """
    if y is not None and y.shape != x.shape:
        raise ValueError(f"got {x.size} values and {y.size} to add to them")
    if not x.flags.c_contiguous or not (y is None or y.flags.c_contiguous):
        # Blocks are read as they lie in memory.
        x, y = np.ascontiguousarray(x if y is None else np.add(x, y, out=x)), None
    least = int(np.float32(threshold).view(np.int32))
    if not 0 < least < _UNSAFE:
        least = _guess(x, y, k)
    # Of this memory, only what is written to becomes real.
    room = min(4 * k + _SPARE, x.size) + _BLOCK
    found, values = np.empty(room, np.int64), np.empty(room, np.float32)
    count = _select(x, y, k, least, found, values)
    while count < k and least > 1:
        # Halving the bits takes the square root of the magnitude's scale: 1 is soon reached.
        guess = _guess(x, None, k)
        least = guess if guess < least else max(least // 2, 1)
        count = _select(x, None, k, least, found, values)
    return found[:count].copy(), values[:count].copy()


def _guess(x: NDArray[np.float32], y: NDArray[np.float32] | None, k: int) -> int:
    """A threshold that a few more than k magnitudes are likely to reach."""
    step = max(x.size // _SAMPLE, 1)
    sample = x[::step]
    expected = sample.size * k / max(x.size, 1)
    rank = math.ceil(expected + 3 * math.sqrt(expected) + 3)
    if rank >= sample.size or x.size < _SAMPLE:
        return 1
    if y is not None:
        with np.errstate(all="ignore"):  # what is not finite is found, and named, later
            sample = sample + y[::step]
    magnitudes = sample.view(np.int32) & _MAGNITUDE
    place = magnitudes.size - rank
    return max(int(np.partition(magnitudes, place)[place]), 1)


@jit
def _spelled(value: Scalar) -> Scalar:
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
    """Find the k largest of what reaches a threshold and return how many there are, at most k."""
    at = np.int64(0)
    count = np.int64(0)
    reached = np.int32(threshold)
    while True:
        at, count = _scan(x, y, at, reached, found, values, count)
        if count > k:
            least = _kth(values, count, k)
            _keep(found, values, count, least, k)
            count = np.int64(k)
            # An equal magnitude further on would lose to those there are.
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
    """Append what reaches the threshold to the ``count`` indices and values found already.

    Goes on from ``at`` until there might not be room for one more block, and returns how far that
    was and how many are found. Adds ``y`` to ``x`` on the way.
    """
    at = np.int64(at)
    count = np.int64(count)
    full = found.size - _BLOCK
    while at + _BLOCK <= x.size and count <= full:
        hits = reaching(x, y, at, threshold)
        # The first is written always and kept only if there is one: no branch to mispredict.
        place = at + (np.int64(trailing_zeros(hits)) & (_BLOCK - 1))
        found[count] = place
        values[count] = x[place]
        count += np.int64(hits != np.uint64(0))
        hits &= hits - np.uint64(1)
        while hits != np.uint64(0):
            place = at + np.int64(trailing_zeros(hits))
            found[count] = place
            values[count] = x[place]
            count += 1
            hits &= hits - np.uint64(1)
        at += _BLOCK
    if count <= full:
        while at < x.size:
            if y is not None:
                x[at] += y[at]
            if _spelled(x[at]) >= threshold:
                found[count] = at
                values[count] = x[at]
                count += 1
            at += 1
    return at, count


@jit
def _kth(values: NDArray[np.float32], count: Scalar, k: Scalar) -> Scalar:
    """How the k-th largest of the first ``count`` magnitudes is spelled, eleven bits at a time."""
    known = np.int64(0)
    rank = np.int64(k)
    for shift in range(22, -1, -11):
        counts = np.zeros(2048, np.int64)
        for i in range(count):
            spelled = np.int64(_spelled(values[i]))
            counts[(spelled >> shift) & 2047] += np.int64(spelled >> (shift + 11) == known)
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
    """Move the k largest to the front, in their order; ``least`` spells the smallest of them.

    Unlike the paper: its mask ``|T| >= v`` keeps every tie, so more than k entries.
    """
    ties = np.int64(k)
    for i in range(count):
        ties -= np.int64(_spelled(values[i]) > least)
    kept = np.int64(0)
    for i in range(count):
        spelled = _spelled(values[i])
        tie = np.int64(spelled == least)
        found[kept] = found[i]
        values[kept] = values[i]
        kept += np.int64(spelled > least) + tie * np.int64(ties > 0)
        ties -= tie


def first_unsafe(x: NDArray[np.float32]) -> int:
    """Index of the first value that is NaN, infinite or beyond 2**100; -1 if there is none."""
    return int(_first(np.ascontiguousarray(x), _UNSAFE))


@jit
def _first(x: NDArray[np.float32], threshold: Scalar) -> Scalar:
    """Index of the first magnitude that reaches a threshold; -1 if none does."""
    whole = x.size - x.size % _BLOCK
    for start in range(0, whole, _BLOCK):
        hits = reaching(x, None, start, threshold)
        if hits != np.uint64(0):
            return start + np.int64(trailing_zeros(hits))
    for i in range(whole, x.size):
        if _spelled(x[i]) >= threshold:
            return i
    return -1
