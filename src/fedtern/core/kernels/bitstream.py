"""Bit streams of Golomb-coded gaps and of fixed-width numbers, lowest bit of each byte first.

The three parts of a Golomb-coded message (signs, remainders, quotients) are stored one after the
other instead of interleaved, so that each part can be read one machine word at a time.
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
    """Write the gaps between indices as Golomb codes (Algorithm 3 of the paper).

    A gap is written as ``gap >> width`` ones and a zero in ``quotients``, and its ``width`` low
    bits in ``remainders``. Both streams are assembled one machine word at a time.

    Args:
        indices: strictly increasing positions.
        width: the number of low bits of each gap.
        remainders: the buffer for the low bits.
        quotients: the buffer for the unary codes.

    Returns:
        The number of bits written to ``quotients``.

    """
    previous = np.int64(-1)
    mask = (np.int64(1) << width) - 1
    low_word = np.uint64(0)
    low_bits = np.int64(0)
    low_at = np.int64(0)
    word = np.uint64(0)
    bits = np.int64(0)
    at = np.int64(0)
    for j in range(indices.size):
        gap = indices[j] - previous - 1
        previous = indices[j]
        low = np.uint64(gap & mask)
        low_word |= low << np.uint64(low_bits)
        low_bits += width
        if low_bits >= 64:
            low_at = _write_bytes(remainders, low_at, low_word, 8)
            low_bits -= 64
            low_word = low >> np.uint64(width - low_bits)
        ones = gap >> width
        while bits + ones >= 64:
            at = _write_bytes(quotients, at, word | (_ONES << np.uint64(bits)), 8)
            ones -= 64 - bits
            word = np.uint64(0)
            bits = np.int64(0)
        word |= ((np.uint64(1) << np.uint64(ones)) - np.uint64(1)) << np.uint64(bits)
        bits += ones + 1
        if bits == 64:
            at = _write_bytes(quotients, at, word, 8)
            word = np.uint64(0)
            bits = np.int64(0)
    _write_bytes(remainders, low_at, low_word, (low_bits + 7) >> 3)
    _write_bytes(quotients, at, word, (bits + 7) >> 3)
    return 8 * at + bits


@jit
def _write_bytes(out: NDArray[np.uint8], at: Scalar, word: Scalar, count: Scalar) -> Scalar:
    """Write the ``count`` low bytes of a word, lowest first; return the index after them."""
    if count == 8:
        for j in range(8):  # a constant number of iterations compiles to one instruction
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
    """Read Golomb-coded gaps and fill ``indices`` (Algorithm 4 of the paper).

    Args:
        remainders: the low bits, followed by at least eight spare bytes.
        quotients: the unary codes, followed by at least eight spare bytes.
        unary_bits: the number of bits available in ``quotients``.
        width: the number of low bits of each gap.
        size: every index must be below this.
        indices: the output; its length is the number of gaps to read.

    Returns:
        The number of bits read from ``quotients``; -1 if the stream ends early or an index is not
        below ``size``.

    """
    previous = np.int64(-1)
    terminator = np.int64(-1)  # the bit that ended the last quotient
    low_at = np.int64(0)
    found = 0
    max_quotient = np.int64(size) >> width
    for start in range(0, unary_bits, 64):
        # A zero ends a quotient: look for ones in the inverted word.
        word = ~_read_bits(quotients, start, 64)
        while word != np.uint64(0) and found < indices.size:
            at = start + np.int64(trailing_zeros(word))
            word &= word - np.uint64(1)
            quotient = at - terminator - 1
            if at >= unary_bits or quotient > max_quotient:
                return -1
            terminator = at
            low = np.int64(_read_bits(remainders, low_at, width))
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
def _read_bits(data: NDArray[np.uint8], at: Scalar, width: Scalar) -> Scalar:
    """Read ``width`` bits from bit ``at`` on; 64 bits only if ``at`` is a multiple of 8."""
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
    """Write non-negative levels with ``width`` bits each, at most 32."""
    word = np.uint64(0)
    bits = np.int64(0)
    at = np.int64(0)
    # Same loop as for the remainders in ``encode_gaps``: sharing a function made both two to six
    # times slower.
    for i in range(levels.size):
        level = np.uint64(levels[i])
        word |= level << np.uint64(bits)
        bits += width
        if bits >= 64:
            at = _write_bytes(out, at, word, 8)
            bits -= 64
            word = level >> np.uint64(width - bits)
    _write_bytes(out, at, word, (bits + 7) >> 3)


@jit
def unpack_levels(data: NDArray[np.uint8], width: Scalar, levels: NDArray[np.int32]) -> None:
    """Read the levels that ``pack_levels`` wrote; ``data`` has eight spare bytes at its end."""
    for i in range(levels.size):
        levels[i] = np.int32(_read_bits(data, np.int64(i) * width, width))
