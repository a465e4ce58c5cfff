"""Updates add up to their dense form, and merged updates lead to the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import CODECS, LAYOUT, random_vector, sample_update
from fedtern import Layout
from fedtern.core.compressors import Sign, SparseTernary, TopK
from fedtern.core.protocol.replica import Replica
from fedtern.core.updates import Dense, Levels, Sparse
from fedtern.core.updates.sums import merge_updates


@pytest.mark.parametrize("name", CODECS)
@given(seed=st.integers(0, 2**32), scale=st.sampled_from([1.0, -1.0, 0.125]))
@settings(max_examples=20)
def test_adding_an_update_equals_adding_its_dense_form(name, seed, scale):
    rng = np.random.default_rng(seed)
    update = sample_update(name, LAYOUT, rng)
    out = random_vector(rng, LAYOUT.size)
    expected = out + np.float32(scale) * update.to_dense()
    # Merged updates are added one by one: values that cancel leave rounding errors of the largest.
    largest = max(np.abs(out).max(), np.abs(update.to_dense()).max())
    update.add_to(out, scale)
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-5 + 1e-6 * largest)


@pytest.mark.parametrize(
    "compressor",
    [SparseTernary(0.1), SparseTernary(0.1, "tensor"), TopK(0.1), Sign(0.003)],
    ids=["ternary", "ternary-tensor", "topk", "sign"],
)
@given(seed=st.integers(0, 2**32), num_updates=st.integers(1, 6))
@settings(max_examples=50)
def test_merged_updates_give_the_same_bits_as_single_updates(compressor, seed, num_updates):
    rng = np.random.default_rng(seed)
    start = random_vector(rng, LAYOUT.size)
    one_by_one = Replica(start.copy())
    at_once = Replica(start.copy())
    updates = [
        compressor.compress(random_vector(rng, LAYOUT.size), LAYOUT, rng)
        for _ in range(num_updates)
    ]
    for update in updates:
        one_by_one.apply(update)
    merged = merge_updates(updates)
    if merged is not None:
        at_once.apply(merged)
        assert at_once.weights.tobytes() == one_by_one.weights.tobytes()
        after = compressor.compress(random_vector(rng, LAYOUT.size), LAYOUT, rng)
        at_once.apply(after)
        one_by_one.apply(after)
        assert at_once.weights.tobytes() == one_by_one.weights.tobytes()


def test_a_sum_of_floats_depends_on_the_order():
    """This is why updates are merged in round order and not just added up."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(1000).astype(np.float32) for _ in range(10)]
    start = rng.standard_normal(1000).astype(np.float32)
    one_by_one = start.copy()
    for part in parts:
        one_by_one += part
    assert not np.array_equal(one_by_one, start + np.sum(parts, axis=0, dtype=np.float32))


def test_updates_that_cannot_be_merged_give_none():
    rng = np.random.default_rng(0)
    layout = Layout.flat(50)
    x = rng.standard_normal(50).astype(np.float32)
    dense = Dense(x)
    sparse = TopK(0.1).compress(x, layout, rng)
    every_value = TopK(1.0).compress(x, layout, rng)
    signs = [Sign(step).compress(x, layout, rng) for step in (0.1, 0.2)]
    assert merge_updates([]) is None
    assert merge_updates([Sparse.empty(50)]) is None
    assert merge_updates([sparse, dense]) is None
    assert merge_updates(signs) is None
    assert merge_updates([signs[0], sparse]) is None
    assert merge_updates([every_value] * 2) is None  # more entries than parameters


def test_empty_updates_are_left_out_when_merging():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(50).astype(np.float32)
    sparse = TopK(0.1).compress(x, Layout.flat(50), rng)
    assert merge_updates([sparse, Sparse.empty(50), sparse]).num_updates == 2


def test_levels_of_a_large_model_are_the_same_in_parts():
    rng = np.random.default_rng(0)
    ends = np.array([7, 300_000, 300_001, 600_000, 600_000, 700_123])
    size = int(ends[-1])
    levels = rng.integers(-3, 4, size).astype(np.int32)
    scales = rng.random(ends.size).astype(np.float32)
    update = Levels(size, levels, scales, ends, 3)
    units = np.repeat(scales / np.float32(3), np.diff(ends, prepend=0))
    expected = units * levels.astype(np.float32)
    assert np.array_equal(update.to_dense(), expected)
    start = rng.standard_normal(size).astype(np.float32)
    whole, parts = start.copy(), start.copy()
    Dense(expected).add_to(whole, 0.3)
    update.add_to(parts, 0.3)
    assert np.array_equal(whole, parts)
