"""Elias's omega code: whole numbers from 1 on, the small ones in few bits.

A number is written as its binary digits, before them the number of those less one as its binary
digits, and so on until that is 1; a zero ends it. Digits are written highest first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels.compiler import Scalar, jit


@jit
def _length(value: Scalar) -> Scalar:
    """How many bits a number takes."""
    total = 1
    while value > 1:
        digits = 0
        rest = value
        while rest > 0:
            digits += 1
            rest >>= 1
        total += digits
        value = digits - 1
    return total


@jit
def _put(out: NDArray[np.uint8], at: Scalar, value: Scalar) -> Scalar:
    """Write a number that ends up before bit ``at + length``, last group first."""
    end = at + _length(value)
    place = end - 1  # the closing zero is there already
    while value > 1:
        rest = value
        digits = 0
        while rest > 0:
            place -= 1
            digits += 1
            if rest & 1:
                out[place >> 3] |= np.uint8(1 << (place & 7))
            rest >>= 1
        value = digits - 1
    return end


@jit
def _get(data: NDArray[np.uint8], at: Scalar, bits: Scalar, most: Scalar) -> Scalar:
    """The number at bit ``at``; -1 where the stream ends before it does or it is too large."""
    value = np.int64(1)
    while True:
        if at >= bits:
            return np.int64(-1)
        if not (data[at >> 3] >> (at & 7)) & 1:
            return value
        if value > 62 or at + value >= bits:
            return np.int64(-1)
        digits = value + 1
        value = np.int64(0)
        for i in range(digits):
            place = at + i
            value = (value << 1) | np.int64((data[place >> 3] >> (place & 7)) & 1)
        at += digits
        if value > most:
            return np.int64(-1)


@jit
def measure_levels(levels: NDArray[np.int32], sparse: Scalar) -> Scalar:
    """How many bits ``encode_levels`` would write."""
    total = 0
    previous = -1
    for i in range(levels.size):
        magnitude = abs(np.int64(levels[i]))
        if sparse:
            if magnitude:
                total += _length(i - previous) + 1 + _length(magnitude)
                previous = i
        else:
            total += _length(magnitude + 1) + (1 if magnitude else 0)
    return total


@jit
def encode_levels(levels: NDArray[np.int32], sparse: Scalar, out: NDArray[np.uint8]) -> None:
    """Write levels to a zeroed buffer.

    Sparse: for each non-zero its distance from the one before, its sign and its magnitude; else for
    every level its magnitude plus one, and its sign unless it is zero. A sign is 1 for plus.
    """
    at = np.int64(0)
    previous = np.int64(-1)
    for i in range(levels.size):
        magnitude = abs(np.int64(levels[i]))
        if sparse:
            if not magnitude:
                continue
            at = _put(out, at, i - previous)
            previous = np.int64(i)
        else:
            at = _put(out, at, magnitude + 1)
            if not magnitude:
                continue
        if levels[i] > 0:
            out[at >> 3] |= np.uint8(1 << (at & 7))
        at += 1
        if sparse:
            at = _put(out, at, magnitude)


@jit
def decode_levels(
    data: NDArray[np.uint8], sparse: Scalar, count: Scalar, steps: Scalar, levels: NDArray[np.int32]
) -> Scalar:
    """Fill zeroed ``levels`` with ``count`` numbers and return how many bits that took.

    ``count`` is that of the non-zeros if sparse, else that of all levels. Returns -1 where the
    stream ends early, runs past the last level or holds one above ``steps``.
    """
    bits = np.int64(8) * data.size
    at = np.int64(0)
    place = np.int64(-1)
    for _ in range(count):
        if sparse:
            gap = _get(data, at, bits, np.int64(levels.size))
            if gap < 0 or place + gap >= levels.size:
                return -1
            at += _length(gap)
            place += gap
        else:
            place += 1
            magnitude = _get(data, at, bits, np.int64(steps) + 1) - 1
            if magnitude < 0:
                return -1
            at += _length(magnitude + 1)
            if magnitude == 0:
                continue
        if at >= bits:
            return -1
        positive = (data[at >> 3] >> (at & 7)) & 1
        at += 1
        if sparse:
            magnitude = _get(data, at, bits, np.int64(steps))
            if magnitude < 0:
                return -1
            at += _length(magnitude)
        levels[place] = magnitude if positive else -magnitude
    return at
