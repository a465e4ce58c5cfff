"""Compressors keep the right values and refuse values that cannot be sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks import LAYOUT, random_vector, vectors
from fedtern import Layout, NonFiniteError
from fedtern.core.compressors import Identity, Sign, SparseTernary, TopK, count_kept

RNG = np.random.default_rng(0)
rates = st.floats(1e-4, 1.0)


@given(vectors, rates)
def test_exactly_k_entries_are_kept_or_all_nonzeros(x, p):
    k = min(count_kept(x.size, p), np.count_nonzero(x))
    for compressor in (SparseTernary(p), TopK(p)):
        update = compressor.compress(x, Layout.flat(x.size), RNG)
        assert update.indices.size == k
        assert np.all(np.diff(update.indices) > 0)


@given(vectors, rates)
def test_ternary_values_are_the_mean_magnitude_of_the_values_topk_keeps(x, p):
    ternary = SparseTernary(p).compress(x, Layout.flat(x.size), RNG)
    sparse = TopK(p).compress(x, Layout.flat(x.size), RNG)
    assert np.array_equal(ternary.indices, sparse.indices)
    assert np.array_equal(np.sign(ternary.values), np.sign(sparse.values))
    if sparse.indices.size:
        mean = np.abs(sparse.values.astype(np.float64)).mean()
        assert np.allclose(np.abs(ternary.values), mean, rtol=1e-6)


@given(vectors, rates)
def test_compressing_an_update_again_does_not_change_it(x, p):
    layout = Layout.flat(x.size)
    once = SparseTernary(p).compress(x, layout, RNG).to_dense()
    assert np.array_equal(SparseTernary(p).compress(once, layout, RNG).to_dense(), once)


@given(vectors, rates)
def test_sparse_compressors_are_contractions(x, p):
    """||x - C(x)||^2 <= (1 - k/n) ||x||^2 for top-k; ternary is never worse than sending 0."""
    layout = Layout.flat(x.size)
    x64 = x.astype(np.float64)
    norm = (x64**2).sum()
    share = min(count_kept(x.size, p), x.size) / x.size
    sparse = TopK(p).compress(x, layout, RNG).to_dense()
    assert ((x64 - sparse) ** 2).sum() <= (1 - share) * norm * (1 + 1e-5)
    ternary = SparseTernary(p).compress(x, layout, RNG).to_dense()
    assert ((x64 - ternary) ** 2).sum() <= norm * (1 + 1e-5)


def test_tensor_scope_keeps_the_largest_entry_of_every_tensor():
    x = np.zeros(LAYOUT.size, np.float32)
    x[[0, 25, 40]] = 1e-6, 1.0, -1e6
    update = SparseTernary(0.01, "tensor").compress(x, LAYOUT, RNG)
    assert update.indices.tolist() == [0, 25, 40]
    assert np.array_equal(update.values, x[update.indices])
    assert SparseTernary(0.03, "model").compress(x, LAYOUT, RNG).indices.tolist() == [40]


def test_tensor_scope_compresses_each_tensor_separately():
    x = random_vector(np.random.default_rng(5), LAYOUT.size, zeros=0)
    whole = SparseTernary(0.2, "tensor").compress(x, LAYOUT, RNG).to_dense()
    for name, view in LAYOUT.unflatten(x).items():
        alone = SparseTernary(0.2).compress(view.reshape(-1), Layout.flat(view.size), RNG)
        assert np.array_equal(LAYOUT.unflatten(whole)[name].reshape(-1), alone.to_dense())


def test_all_zeros_give_an_empty_update():
    x = np.zeros(LAYOUT.size, np.float32)
    for compressor in (SparseTernary(0.5), SparseTernary(0.5, "tensor"), TopK(0.5)):
        update = compressor.compress(x, LAYOUT, RNG)
        assert update.indices.size == 0
        assert not update.to_dense().any()


def test_zeros_are_not_kept_if_there_are_fewer_than_k_nonzeros():
    """With the paper's mask, a threshold of zero would keep every value."""
    update = SparseTernary(0.5).compress(np.float32([1, 0, 0, 0]), Layout.flat(4), RNG)
    assert update.to_dense().tolist() == [1, 0, 0, 0]


def test_k_is_rounded_down_to_at_least_one_without_float_errors():
    assert [count_kept(100, p) for p in (0.29, 0.57, 0.001, 1.0)] == [29, 57, 1, 100]
    assert count_kept(865_482, 1 / 400) == 2163


def test_only_zeros_get_random_signs():
    x = np.float32([3, -0.5, 0, -0.0] * 500)
    signs = Sign(0.5).compress(x, Layout.flat(x.size), np.random.default_rng(1)).positive
    assert signs[0::4].all()
    assert not signs[1::4].any()
    assert 400 < signs[2::4].sum() + signs[3::4].sum() < 600


@pytest.mark.parametrize("compressor", [Identity(), TopK(0.1), SparseTernary(0.1), Sign()])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2e30])
def test_errors_about_values_that_are_not_finite_name_the_tensor(compressor, bad):
    x = np.zeros(LAYOUT.size, np.float32)
    x[26] = bad
    with pytest.raises(NonFiniteError, match=r"at bias\[2\] cannot be sent"):
        compressor.compress(x, LAYOUT, RNG)


@pytest.mark.parametrize("p", [0, -0.1, 1.5, float("nan")])
def test_rates_out_of_range_are_refused(p):
    with pytest.raises(ValueError, match=r"p must be in \(0, 1\], got"):
        SparseTernary(p)
    with pytest.raises(ValueError, match=r"p must be in \(0, 1\], got"):
        TopK(p)


def test_unknown_scopes_are_refused():
    with pytest.raises(ValueError, match='scope must be "model" or "tensor", got \'layer\''):
        SparseTernary(0.1, "layer")


def test_a_step_of_zero_is_refused():
    with pytest.raises(ValueError, match="step must be a positive"):
        Sign(0.0)
