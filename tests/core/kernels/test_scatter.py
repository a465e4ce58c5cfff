"""Kernels that add updates and count votes, compared with plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtern.core.kernels import apply_sign_counts, scatter_add, scatter_signs
from fedtern.core.methods.aggregation import MajorityVote, Mean
from fedtern.core.updates import Signs, Sparse, Ternary


def test_repeated_indices_are_added_in_order():
    out = np.float32([1.0, 1e8])
    scatter_add(out, np.array([1, 0, 1]), np.float32([1.0, 2.0, -1e8]), np.float32(1))
    # (1e8 + 1) - 1e8 is 0 in float32: another order would give 1.
    assert out.tolist() == [3.0, 0.0]


def test_applying_sign_counts_rounds_once():
    rng = np.random.default_rng(0)
    base = rng.standard_normal(1000).astype(np.float32)
    counts = rng.integers(-(10**6), 10**6, 1000).astype(np.int32)
    step = np.float64(np.float32(0.0002))
    weights = np.empty_like(base)
    apply_sign_counts(weights, base, counts, step)
    assert np.array_equal(weights, (base.astype(np.float64) + step * counts).astype(np.float32))


@given(st.integers(0, 2**32), st.integers(1, 200), st.floats(-3, 3, width=32))
def test_scatter_signs_gives_the_same_bits_as_a_loop(seed, size, step):
    rng = np.random.default_rng(seed)
    out = rng.standard_normal(size).astype(np.float32)
    indices = np.flatnonzero(rng.random(size) < 0.3)
    signs = rng.random(indices.size) < 0.5
    expected = out.copy()
    for i, sign in zip(indices, signs, strict=True):
        expected[i] += np.float32(step) if sign else -np.float32(step)
    scatter_signs(out, indices, signs, np.float32(step))
    assert out.tobytes() == expected.tobytes()


def random_update(rng, size):
    indices = np.flatnonzero(rng.random(size) < 0.2)
    values = rng.standard_normal(indices.size).astype(np.float32)
    kind = rng.integers(3)
    if kind == 0:
        return Sparse(size, indices, values)
    ends = None if kind == 1 else np.array([size // 2, size])
    mus = np.abs(rng.standard_normal(1 if ends is None else 2)).astype(np.float32)
    return Ternary(size, indices, values > 0, mus, ends)


@pytest.mark.parametrize("weighted", [False, True])
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 12))
def test_the_mean_adds_updates_in_order_and_rounds_after_each(weighted, seed, size, count):
    rng = np.random.default_rng(seed)
    updates = [random_update(rng, size) for _ in range(count)]
    examples = rng.integers(1, 100, count).tolist()
    shares = examples if weighted else [1] * count
    expected = np.zeros(size, np.float32)
    for update, share in zip(updates, shares, strict=True):
        scale = np.float32(share / sum(shares))
        for i, value in zip(update.indices, update.values, strict=True):
            expected[i] += scale * value
    assert Mean(weighted).combine(updates, examples).tobytes() == expected.tobytes()


# Votes are counted in bytes, up to 255 at a time.
@pytest.mark.parametrize("count", [1, 2, 7, 254, 255, 256, 511])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 100])
def test_vote_counts_are_exact(size, count):
    rng = np.random.default_rng([size, count])
    votes = rng.random((count, size)) < rng.random(size)
    votes[:, 0] = True
    result = MajorityVote().combine([Signs.pack(v, 0.5) for v in votes], [1] * count)
    assert result.dtype == np.float32
    assert result.tolist() == [2.0 * int(v.sum()) - count for v in votes.T]


def test_votes_on_models_of_different_sizes_are_refused():
    votes = [Signs.pack(np.ones(size, np.bool_), 0.5) for size in (16, 17)]
    with pytest.raises(ValueError, match="17 weights, expected 16"):
        MajorityVote().combine(votes, [1, 1])
