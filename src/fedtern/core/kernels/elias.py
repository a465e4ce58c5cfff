"""Elias omega code: positive integers, small ones in few bits.

The code of a number consists of groups of binary digits, highest digit first, and a final zero.
The last group is the number itself. The group before it is the number of its digits minus one, and
so on, until that is 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels.compiler import Scalar, jit


@jit
def _code_length(value: Scalar) -> Scalar:
    """Return the number of bits of a number's code."""
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
def _write_number(out: NDArray[np.uint8], at: Scalar, value: Scalar) -> Scalar:
    """Write a number's code from bit ``at`` on, last group first; return the bit after it."""
    end = at + _code_length(value)
    bit = end - 1  # the buffer already holds the final zero
    while value > 1:
        rest = value
        digits = 0
        while rest > 0:
            bit -= 1
            digits += 1
            if rest & 1:
                out[bit >> 3] |= np.uint8(1 << (bit & 7))
            rest >>= 1
        value = digits - 1
    return end


@jit
def _read_number(data: NDArray[np.uint8], at: Scalar, bits: Scalar, most: Scalar) -> Scalar:
    """Read the number at bit ``at``; -1 if the stream ends early or the number exceeds ``most``."""
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
            bit = at + i
            value = (value << 1) | np.int64((data[bit >> 3] >> (bit & 7)) & 1)
        at += digits
        if value > most:
            return np.int64(-1)


@jit
def measure_levels(levels: NDArray[np.int32], sparse: Scalar) -> Scalar:
    """Return the number of bits that ``encode_levels`` would write."""
    total = 0
    previous = -1
    for i in range(levels.size):
        magnitude = abs(np.int64(levels[i]))
        if sparse:
            if magnitude:
                total += _code_length(i - previous) + 1 + _code_length(magnitude)
                previous = i
        else:
            total += _code_length(magnitude + 1) + (1 if magnitude else 0)
    return total


@jit
def encode_levels(levels: NDArray[np.int32], sparse: Scalar, out: NDArray[np.uint8]) -> None:
    """Write levels to a buffer of zeros.

    Sparse: for each non-zero level, its distance from the previous one, its sign and its magnitude.
    Dense: for every level, its magnitude plus one, and its sign unless it is zero. A sign is one
    bit, 1 for plus.
    """
    at = np.int64(0)
    previous = np.int64(-1)
    for i in range(levels.size):
        magnitude = abs(np.int64(levels[i]))
        if sparse:
            if not magnitude:
                continue
            at = _write_number(out, at, i - previous)
            previous = np.int64(i)
        else:
            at = _write_number(out, at, magnitude + 1)
            if not magnitude:
                continue
        if levels[i] > 0:
            out[at >> 3] |= np.uint8(1 << (at & 7))
        at += 1
        if sparse:
            at = _write_number(out, at, magnitude)


@jit
def decode_levels(
    data: NDArray[np.uint8], sparse: Scalar, count: Scalar, steps: Scalar, levels: NDArray[np.int32]
) -> Scalar:
    """Read the levels that ``encode_levels`` wrote.

    Args:
        data: the encoded levels.
        sparse: whether ``data`` holds only the non-zero levels.
        count: the number of levels in ``data``.
        steps: the largest magnitude of a level.
        levels: the output, filled with zeros.

    Returns:
        The number of bits read; -1 if the stream ends early, runs past the last level, or holds
        a level above ``steps``.

    """
    bits = np.int64(8) * data.size
    at = np.int64(0)
    position = np.int64(-1)
    for _ in range(count):
        if sparse:
            gap = _read_number(data, at, bits, np.int64(levels.size))
            if gap < 0 or position + gap >= levels.size:
                return -1
            at += _code_length(gap)
            position += gap
        else:
            position += 1
            magnitude = _read_number(data, at, bits, np.int64(steps) + 1) - 1
            if magnitude < 0:
                return -1
            at += _code_length(magnitude + 1)
            if magnitude == 0:
                continue
        if at >= bits:
            return -1
        positive = (data[at >> 3] >> (at & 7)) & 1
        at += 1
        if sparse:
            magnitude = _read_number(data, at, bits, np.int64(steps))
            if magnitude < 0:
                return -1
            at += _code_length(magnitude)
        levels[position] = magnitude if positive else -magnitude
    return at
