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
def test_shape_is_kept_and_the_result_is_sparse_ternary_float32(x, p):
    y = fedtern.decompress(fedtern.compress(x, p))
    assert y.shape == x.shape
    assert y.dtype == np.float32
    assert np.unique(np.abs(y[y != 0])).size <= 1
    assert np.count_nonzero(y) == min(max(int(x.size * p * (1 + 1e-12)), 1), np.count_nonzero(x))
    assert np.array_equal(np.sign(y[y != 0]), np.sign(x[y != 0]))


@pytest.mark.parametrize("seed", range(5))
def test_a_vgg_sized_update_at_1_in_400_fits_3040_bytes(seed):
    x = np.random.default_rng(seed).standard_normal(865_482)
    data = fedtern.compress(x, p=1 / 400)
    assert len(data) <= 3040
    assert 4 * x.size / len(data) >= 1135


def test_the_size_is_within_a_percent_of_the_papers_formula_and_close_to_the_entropy():
    size, p = 1_000_000, 0.01
    data = fedtern.compress(np.random.default_rng(0).standard_normal(size), p)
    bits = 8 * len(data) / (size * p)
    assert abs(bits / (8.108 + 1) - 1) < 0.01
    entropy = (-np.log2(p) - (1 - p) / p * np.log2(1 - p)) + 1
    assert bits / entropy < 1.02


def test_bad_arguments_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="array must be float16, float32 or float64, got int64"):
        fedtern.compress(np.arange(3))
    with pytest.raises(ValueError, match=r"p must be in \(0, 1\], got 0"):
        fedtern.compress(np.ones(3), p=0)
    with pytest.raises(NonFiniteError, match=r"value inf at array\[1, 2\]"):
        fedtern.compress(np.array([[1.0, 2, 3], [4, 5, 1e300]]))


def test_bad_bytes_are_refused_in_a_sentence():
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


def test_a_shape_that_fits_no_memory_is_refused():
    from fedtern.core.envelope import ARRAY, seal
    from fedtern.core.wire import varint

    huge = seal(ARRAY, varint(3) + varint(1 << 30) * 3 + b"\x03\x00\x00\x00\x00\x00")
    with pytest.raises(DecodeError, match="no room in any memory"):
        fedtern.decompress(huge, max_size=1 << 62)


def test_the_order_of_bytes_in_memory_does_not_matter():
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    assert fedtern.compress(x.astype(">f4"), p=0.1) == fedtern.compress(x, p=0.1)
