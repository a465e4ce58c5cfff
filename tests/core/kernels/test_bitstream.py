"""Bit stream kernels, compared with strings of bits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedtern.core.kernels import decode_gaps, encode_gaps, pack_levels, unpack_levels


def bits(text: str) -> bytes:
    padded = text + "0" * (-len(text) % 8)
    return np.packbits(np.array([int(c) for c in padded], np.uint8), bitorder="little").tobytes()


def oracle(indices: list[int], width: int) -> tuple[bytes, bytes]:
    """Algorithm 3 with one character per bit."""
    low = ""
    high = ""
    previous = -1
    for index in indices:
        gap = index - previous - 1
        low += format(gap % 2**width, f"0{width}b")[::-1] if width else ""
        high += "1" * (gap >> width) + "0"
        previous = index
    return bits(low), bits(high)


positions = st.one_of(
    st.sets(st.integers(0, 3000), max_size=120),
    # Some gaps whose quotients are longer than a machine word.
    st.sets(st.integers(0, 40).map(lambda i: i * i * i // 22), max_size=40),
).map(sorted)


@given(positions, st.integers(0, 12))
def test_gaps_are_written_as_in_algorithm_3_and_read_back(indices, width):
    array = np.array(indices, np.int64)
    low, high = oracle(indices, width)
    remainders = np.full(len(low), 0xAA, np.uint8)
    quotients = np.full(len(high) + 400, 0xAA, np.uint8)
    used = encode_gaps(array, width, remainders, quotients)
    assert remainders.tobytes() == low
    assert quotients[: (used + 7) // 8].tobytes() == high
    out = np.empty(len(indices), np.int64)
    spare = np.zeros(8, np.uint8)
    read = decode_gaps(
        np.concatenate([remainders, spare]),
        np.concatenate([quotients, spare]),
        8 * quotients.size,
        width,
        3001,
        out,
    )
    assert read == used
    assert out.tolist() == indices


@given(st.lists(st.integers(0, 2**20 - 1), max_size=60), st.integers(20, 25))
def test_levels_are_packed_without_gaps_and_read_back(levels, width):
    array = np.array(levels, np.int32)
    packed = np.zeros((array.size * width + 7) // 8, np.uint8)
    pack_levels(array, width, packed)
    assert packed.tobytes() == bits("".join(format(v, f"0{width}b")[::-1] for v in levels))
    out = np.empty_like(array)
    unpack_levels(np.concatenate([packed, np.zeros(8, np.uint8)]), width, out)
    assert out.tolist() == levels
