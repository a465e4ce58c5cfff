"""Bit streams, lowest bit of each byte first.

The three parts of a Golomb-coded message lie one after the other (signs, remainders, quotients)
instead of being interleaved, so that each is read a machine word at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtern.core.kernels.compiler import Scalar, jit, trailing_zeros

_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)


@jit
def encode_gaps(
    indices: NDArray[np.int64],
    width: Scalar,
    remainders: NDArray[np.uint8],
    quotients: NDArray[np.uint8],
) -> Scalar:
    """Write Golomb-coded gaps to two buffers and return the quotients' bits.

    Algorithm 3: each gap is written as ``gap >> width`` ones and a zero, and ``width`` low bits.
    Both streams are put together a machine word at a time.
    """
    previous = np.int64(-1)
    mask = (np.int64(1) << width) - 1
    low_word, low_bits, low_at = np.uint64(0), np.int64(0), np.int64(0)
    word, bits, at = np.uint64(0), np.int64(0), np.int64(0)
    for j in range(indices.size):
        gap = indices[j] - previous - 1
        previous = indices[j]
        low = np.uint64(gap & mask)
        low_word |= low << np.uint64(low_bits)
        low_bits += width
        if low_bits >= 64:
            low_at = _store(remainders, low_at, low_word, 8)
            low_bits -= 64
            low_word = low >> np.uint64(width - low_bits)
        ones = gap >> width
        while bits + ones >= 64:
            at = _store(quotients, at, word | (_ONES << np.uint64(bits)), 8)
            ones -= 64 - bits
            word, bits = np.uint64(0), np.int64(0)
        word |= ((np.uint64(1) << np.uint64(ones)) - np.uint64(1)) << np.uint64(bits)
        bits += ones + 1
        if bits == 64:
            at = _store(quotients, at, word, 8)
            word, bits = np.uint64(0), np.int64(0)
    _store(remainders, low_at, low_word, (low_bits + 7) >> 3)
    _store(quotients, at, word, (bits + 7) >> 3)
    return 8 * at + bits


@jit
def _store(out: NDArray[np.uint8], at: Scalar, word: Scalar, count: Scalar) -> Scalar:
    """Write the ``count`` low bytes of a word, lowest first, and return where the next one goes."""
    if count == 8:
        for j in range(8):  # a constant number of times: compiled to one instruction
            out[at + j] = np.uint8((word >> np.uint64(8 * j)) & np.uint64(0xFF))
    else:
        for j in range(count):
            out[at + j] = np.uint8((word >> np.uint64(8 * j)) & np.uint64(0xFF))
    return at + count


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
    """Write non-negative levels at ``width`` bits each, up to 32, a machine word at a time."""
    word, bits, at = np.uint64(0), np.int64(0), np.int64(0)
    # Like the remainders of ``encode_gaps``: one function for both takes two to six times as long.
    for i in range(levels.size):
        level = np.uint64(levels[i])
        word |= level << np.uint64(bits)
        bits += width
        if bits >= 64:
            at = _store(out, at, word, 8)
            bits -= 64
            word = level >> np.uint64(width - bits)
    _store(out, at, word, (bits + 7) >> 3)


@jit
def unpack_levels(data: NDArray[np.uint8], width: Scalar, levels: NDArray[np.int32]) -> None:
    """Read back what ``pack_levels`` wrote; ``data`` carries eight spare bytes at its end."""
    for i in range(levels.size):
        levels[i] = np.int32(_get(data, np.int64(i) * width, width))
