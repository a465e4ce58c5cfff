"""``compress`` and ``decompress``: accuracy, sizes and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import fedtern
from fedtern import DecodeError, NonFiniteError


@given(
    arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
        elements=st.floats(-1000, 1000, width=16),
    ),
    st.floats(0.001, 1),
)
def test_decompressed_arrays_are_ternary_float32_of_the_same_shape(x, p):
    y = fedtern.decompress(fedtern.compress(x, p))
    assert y.shape == x.shape
    assert y.dtype == np.float32
    assert np.unique(np.abs(y[y != 0])).size <= 1
    assert np.count_nonzero(y) == min(max(int(x.size * p * (1 + 1e-12)), 1), np.count_nonzero(x))
    assert np.array_equal(np.sign(y[y != 0]), np.sign(x[y != 0]))


@pytest.mark.parametrize("seed", range(5))
def test_a_vgg_sized_update_with_p_1_400_takes_at_most_3040_bytes(seed):
    x = np.random.default_rng(seed).standard_normal(865_482)
    data = fedtern.compress(x, p=1 / 400)
    assert len(data) <= 3040
    assert 4 * x.size / len(data) >= 1135


def test_the_size_is_within_one_percent_of_the_formula_and_two_percent_of_the_entropy():
    size = 1_000_000
    p = 0.01
    data = fedtern.compress(np.random.default_rng(0).standard_normal(size), p)
    bits = 8 * len(data) / (size * p)
    assert abs(bits / (8.108 + 1) - 1) < 0.01
    entropy = (-np.log2(p) - (1 - p) / p * np.log2(1 - p)) + 1
    assert bits / entropy < 1.02


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="array must be float16, float32 or float64, got int64"):
        fedtern.compress(np.arange(3))
    with pytest.raises(ValueError, match=r"p must be in \(0, 1\], got 0"):
        fedtern.compress(np.ones(3), p=0)
    with pytest.raises(NonFiniteError, match=r"value inf at array\[1, 2\]"):
        fedtern.compress(np.array([[1.0, 2, 3], [4, 5, 1e300]]))


def test_invalid_bytes_are_refused():
    data = fedtern.compress(np.ones((4, 4), np.float32))
    with pytest.raises(DecodeError, match="at least 6 bytes, got 3"):
        fedtern.decompress(data[:3])
    with pytest.raises(DecodeError, match="not a fedtern message: it starts with 0x7b"):
        fedtern.decompress(b'{"json": 1}')
    with pytest.raises(DecodeError, match="checksum does not match"):
        fedtern.decompress(data[:-1])
    with pytest.raises(DecodeError, match="holds 16 values, more than max_size=15"):
        fedtern.decompress(data, max_size=15)
    client = fedtern.Client(0, fedtern.stc(), weights=np.zeros(4))
    with pytest.raises(DecodeError, match="not a compressed array but a message of kind 1"):
        fedtern.decompress(client.send(np.ones(4)).data)


def test_shapes_too_large_for_any_memory_are_refused():
    from fedtern.core.envelope import ARRAY, seal
    from fedtern.core.wire import varint

    huge = seal(ARRAY, varint(3) + varint(1 << 30) * 3 + b"\x03\x00\x00\x00\x00\x00")
    with pytest.raises(DecodeError, match="too large for any memory"):
        fedtern.decompress(huge, max_size=1 << 62)


def test_big_endian_arrays_give_the_same_bytes():
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    assert fedtern.compress(x.astype(">f4"), p=0.1) == fedtern.compress(x, p=0.1)
