"""Compression of tensors, compared with compression of arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedtern
from checks import random_vector, vectors
from fedtern.training import compress_tensor


@given(vectors, st.sampled_from([1e-3, 0.05, 0.3, 1.0]))
def test_a_tensor_gives_the_same_bytes_as_its_array(x, p):
    assert compress_tensor(torch.from_numpy(x), p) == fedtern.compress(x, p)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7, 11, 13), (300, 400)])
def test_tensors_of_any_shape_and_strides_give_the_same_bytes_as_arrays(shape):
    x = random_vector(np.random.default_rng(0), int(np.prod(shape))).reshape(shape)
    tensor = torch.from_numpy(x).requires_grad_()
    assert compress_tensor(tensor, 0.02) == fedtern.compress(x, 0.02)
    assert compress_tensor(tensor.movedim(0, -1) if shape else tensor, 0.02) == fedtern.compress(
        np.moveaxis(x, 0, -1) if shape else x, 0.02
    )


def test_ties_between_magnitudes_go_to_the_lowest_index():
    x = np.float32([1, -1] * 500 + [3, 0, -0.0])
    assert compress_tensor(torch.from_numpy(x), 0.1) == fedtern.compress(x, 0.1)


@pytest.mark.parametrize("bad", [np.nan, -np.inf, 1.3e30])
def test_non_finite_values_give_the_same_error_as_arrays(bad):
    x = np.ones((20, 30), np.float32)
    x[3, 4] = x[9, 9] = bad
    with pytest.raises(fedtern.NonFiniteError) as array_error:
        fedtern.compress(x, 0.01)
    with pytest.raises(fedtern.NonFiniteError) as tensor_error:
        compress_tensor(torch.from_numpy(x), 0.01)
    assert str(tensor_error.value) == str(array_error.value)


def test_invalid_tensors_and_rates_are_errors():
    with pytest.raises(ValueError, match="float32"):
        compress_tensor(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"p must be in \(0, 1\]"):
        compress_tensor(torch.zeros(3), 0.0)
    with pytest.raises(ValueError, match="at most 32 axes"):
        compress_tensor(torch.zeros([1] * 33))
