"""Bit streams, lowest bit of each byte first.

The three parts of a Golomb-coded message lie one after the other (signs, remainders, quotients)
instead of being interleaved, so that each is read a machine word at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtern.kernels.compiler import Scalar, jit, trailing_zeros

_WORD = 8  # bytes; every buffer that is read here ends in as many spare ones


@jit
def encode_gaps(
    indices: NDArray[np.int64],
    width: Scalar,
    remainders: NDArray[np.uint8],
    quotients: NDArray[np.uint8],
) -> Scalar:
    """Write Golomb-coded gaps to two zeroed buffers and return the quotients' bits.

    Algorithm 3: each gap is written as ``gap >> width`` ones and a zero, and ``width`` low bits.
    """
    previous = np.int64(-1)
    low_at = np.int64(0)
    unary_at = np.int64(0)
    mask = (np.int64(1) << width) - 1
    for j in range(indices.size):
        gap = indices[j] - previous - 1
        previous = indices[j]
        if width > 0:  # else there may be no byte to write to
            _put(remainders, low_at, width, np.uint64(gap & mask))
        low_at += width
        for _ in range(gap >> width):
            quotients[unary_at >> 3] |= np.uint8(1 << (unary_at & 7))
            unary_at += 1
        unary_at += 1
    return unary_at


@jit
def decode_gaps(
    remainders: NDArray[np.uint8],
    quotients: NDArray[np.uint8],
    unary_bits: Scalar,
    width: Scalar,
    size: Scalar,
    indices: NDArray[np.int64],
) -> Scalar:
    """Fill ``indices`` (Algorithm 4) and return how many of ``unary_bits`` bits that took.

    Returns -1 where the stream ends early or leads to an index of ``size`` or more. Both
    buffers carry eight spare bytes at their end.
    """
    previous = np.int64(-1)
    terminator = np.int64(-1)  # bit at which the last quotient ended
    low_at = np.int64(0)
    found = 0
    most = np.int64(size) >> width
    for start in range(0, unary_bits, 64):
        # A zero ends a quotient: look for ones in the inverted word.
        word = ~_get(quotients, start, 64)
        while word != np.uint64(0) and found < indices.size:
            at = start + np.int64(trailing_zeros(word))
            word &= word - np.uint64(1)
            quotient = at - terminator - 1
            if at >= unary_bits or quotient > most:
                return -1
            terminator = at
            low = np.int64(_get(remainders, low_at, width))
            low_at += width
            previous += (quotient << width) + low + 1
            if previous >= size:
                return -1
            indices[found] = previous
            found += 1
        if found == indices.size:
            return terminator + 1
    return 0 if indices.size == 0 else -1


@jit
def _put(out: NDArray[np.uint8], at: Scalar, width: Scalar, value: Scalar) -> None:
    """Write the ``width`` low bits of a value at bit ``at`` of a zeroed buffer."""
    byte = at >> 3
    shift = np.uint64(at & 7)
    out[byte] |= np.uint8((value << shift) & np.uint64(0xFF))
    done = np.int64(8) - (at & 7)
    while done < width:
        byte += 1
        out[byte] = np.uint8((value >> np.uint64(done)) & np.uint64(0xFF))
        done += 8


@jit
def _get(data: NDArray[np.uint8], at: Scalar, width: Scalar) -> Scalar:
    """Read ``width`` bits (64 only where ``at`` is a multiple of 8) from bit ``at``."""
    byte = at >> 3
    word = np.uint64(0)
    for j in range(8):
        word |= np.uint64(data[byte + j]) << np.uint64(8 * j)
    word >>= np.uint64(at & 7)
    if width == 64:
        return word
    return word & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))


@jit
def pack_levels(levels: NDArray[np.int32], width: Scalar, out: NDArray[np.uint8]) -> None:
    """Write non-negative levels at ``width`` bits each to a zeroed buffer."""
    for i in range(levels.size):
        _put(out, np.int64(i) * width, width, np.uint64(levels[i]))


@jit
def unpack_levels(data: NDArray[np.uint8], width: Scalar, levels: NDArray[np.int32]) -> None:
    """Read back what ``pack_levels`` wrote; ``data`` carries eight spare bytes at its end."""
    for i in range(levels.size):
        levels[i] = np.int32(_get(data, np.int64(i) * width, width))
