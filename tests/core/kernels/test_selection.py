"""Selection of the largest magnitudes, compared with a stable sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks import random_vector, same, vectors
from fedtern.core.compressors import SparseTernary, TopK
from fedtern.core.feedback import EMPTY, ErrorFeedback, State
from fedtern.core.kernels import add_top_k, first_unsafe, top_k
from fedtern.core.layout import Layout
from fedtern.core.updates import Ternary


def oracle(x: np.ndarray, k: int) -> np.ndarray:
    order = np.argsort(-np.abs(x.astype(np.float64)), kind="stable")[:k]
    return np.sort(order[x[order] != 0])


@given(vectors, st.integers(1, 400))
def test_top_k_selects_the_same_values_as_a_stable_sort(x, k):
    assert np.array_equal(top_k(x, k), oracle(x, k))


@pytest.mark.parametrize("size", [8192, 8193, 50_000, 262_144 + 17])
@pytest.mark.parametrize("p", [1e-4, 1 / 400, 0.1, 0.7, 1.0])
def test_top_k_is_exact_on_vectors_large_enough_to_sample(size, p):
    x = random_vector(np.random.default_rng(size), size)
    k = max(int(size * p), 1)
    assert np.array_equal(top_k(x, k), oracle(x, k))


def test_top_k_is_exact_if_the_sample_is_misleading():
    # Every sampled value is huge, all others are small: the first threshold is far too high.
    x = np.full(100_000, 0.25, np.float32)
    x[:: 100_000 // 8192] = 1e6
    k = 20_000
    assert np.array_equal(top_k(x, k), oracle(x, k))


@pytest.mark.parametrize("size", [10, 64, 20_000])
def test_ties_go_to_the_lowest_index(size):
    x = np.ones(size, np.float32)
    x[1::2] = -1
    assert np.array_equal(top_k(x, 7), np.arange(7))


@pytest.mark.parametrize("size", [0, 1, 100, 20_000])
def test_zeros_are_never_selected(size):
    x = np.zeros(size, np.float32)
    x[:1] = -0.0
    assert top_k(x, 5).size == 0


def test_the_smallest_subnormal_is_not_zero():
    x = np.zeros(20_000, np.float32)
    x[777] = np.float32(1e-45)
    assert top_k(x, 3).tolist() == [777]


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, 1.3e30, -3e38])
@pytest.mark.parametrize("at", [0, 63, 64, 9_999])
def test_unsafe_values_are_found_and_selected(bad, at):
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    assert first_unsafe(x) == -1
    x[at] = bad
    assert first_unsafe(x) == at
    assert at in top_k(x, 1)


thresholds = st.sampled_from([0.0, -1.0, 1e-45, 1e-3, 0.9, 1.0, 50.0, 1e30, 3e38, np.inf, np.nan])


def check_sum(x, y, k, threshold):
    """Check the sum and its largest values, and that ``y`` does not change."""
    expected = x + y
    target = x.copy()
    y_before = y.copy()
    indices, values = add_top_k(target, y, k, threshold)
    assert target.tobytes() == expected.tobytes()
    assert y.tobytes() == y_before.tobytes()
    assert np.array_equal(indices, oracle(expected, k))
    assert values.tobytes() == expected[indices].tobytes()


@given(vectors, st.integers(0, 2**32), st.integers(1, 400), thresholds)
def test_the_threshold_does_not_change_the_result(x, seed, k, threshold):
    check_sum(x, random_vector(np.random.default_rng(seed), x.size), k, threshold)


@pytest.mark.parametrize("threshold", [0.0, 1e-45, 0.01, 2.9, 40.0, 1e30, np.inf])
@pytest.mark.parametrize("size", [8191, 8192, 100_003])
@pytest.mark.parametrize("p", [1e-5, 1 / 400, 0.3, 1.0])
def test_the_threshold_does_not_change_the_result_if_candidates_overflow(size, p, threshold):
    rng = np.random.default_rng(size)
    x = random_vector(rng, size)
    y = random_vector(rng, size)
    check_sum(x, y, max(int(size * p), 1), threshold)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("k", [1, 100])
def test_sorted_vectors_are_selected_exactly(order, k):
    x = np.arange(1, 60_001, dtype=np.float32)[::order].copy()
    check_sum(x, -2 * x, k, 1.0)


@pytest.mark.parametrize("k", [5, 1000])
def test_ties_go_to_the_lowest_index_if_the_threshold_rises_during_the_scan(k):
    x = np.zeros(100_000, np.float32)
    x[::3] = 1
    x[1::3] = -1
    x[-7:] = 2
    check_sum(x, np.zeros_like(x), k, 0.5)


@pytest.mark.parametrize("strided", [(True, False), (False, True), (True, True)])
def test_strided_vectors_are_selected_exactly(strided):
    rng = np.random.default_rng(0)
    x, y = (random_vector(rng, 20_000 if s else 10_000)[:: 2 if s else 1] for s in strided)
    expected = x + y
    indices, values = add_top_k(x, y, 25, 3.0)
    assert np.array_equal(x, expected)
    assert np.array_equal(indices, oracle(expected, 25))
    assert np.array_equal(values, expected[indices])
    assert np.array_equal(top_k(x, 25), indices)


def test_vectors_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="a vector of 2 values to one of 3 values"):
        add_top_k(np.zeros(3, np.float32), np.zeros(2, np.float32), 1)


def test_top_k_of_nan_with_all_bits_set_gives_the_lowest_indices():
    x = np.full(20_000, -1, np.int32).view(np.float32)
    assert add_top_k(x, None, 3, 1.0)[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.3e30])
@pytest.mark.parametrize("threshold", [0.0, 3.0, 1e29, np.inf])
def test_unsafe_sums_are_selected_first(bad, threshold):
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    y = x.copy()
    y[[70, 9_999]] = bad
    indices, values = add_top_k(x, y, 2, threshold)
    assert indices.tolist() == [70, 9_999]
    assert first_unsafe(values) == 0


def test_thresholds_of_earlier_steps_never_change_the_result():
    """Run many steps with a drifting distribution and compare each with a full sort."""
    rng = np.random.default_rng(0)
    size = 30_000
    layout = Layout.flat(size)
    feedback = ErrorFeedback(SparseTernary(p=1 / 100))
    state: State = EMPTY
    residual = np.zeros(size, np.float32)
    for step in range(60):
        scale = 10.0 ** np.sin(step / 3) * (100 if step == 40 else 1)
        delta = (scale * rng.standard_normal(size)).astype(np.float32)
        if step % 7 == 0:
            delta = np.round(delta, 1)
        target = residual + delta
        delta_copy = delta.copy()
        state_before = {name: vector.copy() for name, vector in state.items()}
        update, after = feedback.step(delta, state, layout, rng)
        assert all(state[name].tobytes() == v.tobytes() for name, v in state_before.items())
        assert isinstance(update, Ternary)
        assert np.array_equal(update.indices, oracle(target, 300))
        mu = np.float32(np.abs(target[update.indices]).mean(dtype=np.float64))
        assert update.mus.tolist() == [mu]
        residual = target - update.to_dense()
        assert np.array_equal(after["residual"], residual)
        followed = feedback.follow(delta_copy, state, update)
        assert {n: v.tobytes() for n, v in followed.items()} == {
            n: v.tobytes() for n, v in after.items()
        }
        state = after


@pytest.mark.parametrize("scope", ["model", "tensor"])
@given(vectors, st.integers(0, 2**32), thresholds)
def test_updates_do_not_depend_on_stored_thresholds(scope, x, seed, threshold):
    rng = np.random.default_rng(seed)
    layout = Layout(("a", "b"), ((x.size // 2,), (x.size - x.size // 2,)))
    for compressor in (SparseTernary(0.1, scope), TopK(0.1, scope)):
        residual = random_vector(rng, x.size)
        plain, _ = ErrorFeedback(compressor).step(x.copy(), {"residual": residual}, layout, rng)
        assert same(plain, compressor.compress(x + residual, layout, rng))
        for count in (1, 2, 3):
            known = {"residual": residual, "thresholds": np.full(count, threshold, np.float32)}
            update, _ = ErrorFeedback(compressor).step(x.copy(), known, layout, rng)
            assert same(update, plain)


def test_two_to_the_hundred_is_the_largest_safe_value():
    assert first_unsafe(np.float32([2.0**100, -(2.0**100)])) == -1
    next_larger = np.nextafter(np.float32(2.0**100), np.float32(np.inf))
    assert first_unsafe(np.float32([0, next_larger])) == 1
