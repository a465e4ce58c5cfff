from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import CODECS, LAYOUT, random_vector, sample_update
from fedtern import Layout
from fedtern.core.compressors import Sign, SparseTernary, TopK
from fedtern.core.feedback import EMPTY, ErrorFeedback, Memoryless
from fedtern.core.methods.aggregation import MajorityVote, Mean
from fedtern.core.protocol.replica import Replica
from fedtern.core.updates import Dense, Sparse
from fedtern.core.updates.sums import merge


@pytest.mark.parametrize("name", CODECS)
@given(seed=st.integers(0, 2**32), scale=st.sampled_from([1.0, -1.0, 0.125]))
@settings(max_examples=20)
def test_adding_an_update_is_adding_its_dense_form(name, seed, scale):
    rng = np.random.default_rng(seed)
    update = sample_update(name, LAYOUT, rng)
    out = random_vector(rng, LAYOUT.size)
    expected = out + np.float32(scale) * update.to_dense()
    # Sums are added one by one: what cancels leaves the rounding of what was there.
    largest = max(np.abs(out).max(), np.abs(update.to_dense()).max())
    update.add_to(out, scale)
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-5 + 1e-6 * largest)


@pytest.mark.parametrize(
    "compressor",
    [SparseTernary(0.1), SparseTernary(0.1, "tensor"), TopK(0.1), Sign(0.003)],
    ids=["ternary", "ternary-tensor", "topk", "sign"],
)
@given(seed=st.integers(0, 2**32), turns=st.integers(1, 6))
@settings(max_examples=50)
def test_a_merged_update_leads_to_the_same_bits_as_its_parts_in_turn(compressor, seed, turns):
    rng = np.random.default_rng(seed)
    start = random_vector(rng, LAYOUT.size)
    one_by_one, at_once = Replica(start.copy()), Replica(start.copy())
    updates = [
        compressor.compress(random_vector(rng, LAYOUT.size), LAYOUT, rng) for _ in range(turns)
    ]
    for update in updates:
        one_by_one.apply(update)
    merged = merge(updates)
    if merged is not None:
        at_once.apply(merged)
        assert at_once.weights.tobytes() == one_by_one.weights.tobytes()
        after = compressor.compress(random_vector(rng, LAYOUT.size), LAYOUT, rng)
        at_once.apply(after)
        one_by_one.apply(after)
        assert at_once.weights.tobytes() == one_by_one.weights.tobytes()


def test_plain_float_addition_would_not_do():
    """The trap that merging in round order avoids: a sum of floats depends on its order."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(1000).astype(np.float32) for _ in range(10)]
    start = rng.standard_normal(1000).astype(np.float32)
    in_turn = start.copy()
    for part in parts:
        in_turn += part
    assert not np.array_equal(in_turn, start + np.sum(parts, axis=0, dtype=np.float32))


def test_what_cannot_be_merged_is_not():
    rng, layout = np.random.default_rng(0), Layout.flat(50)
    x = rng.standard_normal(50).astype(np.float32)
    dense, sparse = Dense(x), TopK(0.1).compress(x, layout, rng)
    signs = [Sign(step).compress(x, layout, rng) for step in (0.1, 0.2)]
    assert merge([]) is None
    assert merge([Sparse.empty(50)]) is None
    assert merge([sparse, dense]) is None
    assert merge(signs) is None
    assert merge([signs[0], sparse]) is None
    assert merge([TopK(1.0).compress(x, layout, rng)] * 2) is None  # more touches than parameters
    assert merge([sparse, Sparse.empty(50), sparse]).turns == 2


def test_a_replica_that_starts_from_the_parts_of_another_stays_equal_to_it():
    rng, layout = np.random.default_rng(0), Layout.flat(200)
    first = Replica(rng.standard_normal(200).astype(np.float32))

    def apply(step: float, *replicas: Replica) -> None:
        update = Sign(step).compress(rng.standard_normal(200).astype(np.float32), layout, rng)
        for replica in replicas:
            replica.apply(update)

    for step in (0.01, 0.01, 0.003, 0.003, 0.003):
        apply(step, first)
    second = Replica.from_arrays(first.to_arrays())
    for step in (0.003, 0.01, 0.01):
        apply(step, first, second)
        assert first.weights.tobytes() == second.weights.tobytes()


def test_signs_are_counted_anew_after_any_other_change():
    rng, layout = np.random.default_rng(0), Layout.flat(50)
    x = rng.standard_normal(50).astype(np.float32)
    signs, sparse = Sign(0.1).compress(x, layout, rng), TopK(0.5).compress(x, layout, rng)
    replica = Replica(x.copy())
    expected = x.copy()
    for update in (signs, sparse, signs):
        replica.apply(update)
        update.add_to(expected)
    assert np.allclose(replica.weights, expected, atol=1e-6)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_error_feedback_loses_nothing(seed):
    rng, layout = np.random.default_rng(seed), Layout.flat(60)
    memory, state = ErrorFeedback(SparseTernary(0.1)), EMPTY
    produced, sent = np.zeros(60), np.zeros(60)
    for _ in range(8):
        delta = rng.standard_normal(60).astype(np.float32)
        produced += delta
        before = {name: vector.copy() for name, vector in state.items()}
        update, after = memory.step(delta, state, layout, rng)
        assert all(np.array_equal(before[name], state[name]) for name in before)
        if rng.random() < 0.3:
            after = memory.give_back(after, update)
        else:
            sent += update.to_dense()
        state = after
    assert np.allclose(produced, sent + state["residual"], atol=1e-4)


def test_following_a_known_update_ends_in_the_same_state_as_making_it():
    rng, layout = np.random.default_rng(2), Layout.flat(60)
    memory = ErrorFeedback(SparseTernary(0.1))
    state = {"residual": rng.standard_normal(60).astype(np.float32)}
    delta = rng.standard_normal(60).astype(np.float32)
    update, after = memory.step(delta.copy(), state, layout, rng)
    followed = memory.follow(delta.copy(), state, update)
    assert followed["residual"].tobytes() == after["residual"].tobytes()


def test_memoryless_keeps_nothing():
    rng, layout = np.random.default_rng(2), Layout.flat(6)
    memory = Memoryless(Sign())
    update, state = memory.step(np.ones(6, np.float32), EMPTY, layout, rng)
    assert not state
    assert not memory.give_back(state, update)
    assert not memory.follow(np.ones(6, np.float32), EMPTY, update)


def test_means_are_plain_or_weighted_by_examples():
    updates = [Dense(np.float32([1, 0])), Sparse(2, np.array([1]), np.float32([4]))]
    assert Mean().combine(updates, [1, 3]).tolist() == [0.5, 2.0]
    assert Mean(weighted=True).combine(updates, [1, 3]).tolist() == [0.25, 3.0]


def test_the_majority_wins_and_a_tie_is_zero():
    rng, layout = np.random.default_rng(0), Layout.flat(3)
    votes = [
        Sign().compress(np.float32(v), layout, rng)
        for v in ([1, 1, 1], [1, -1, 9], [1, -1, -1], [-1, 1, -1])
    ]
    assert np.sign(MajorityVote().combine(votes, [1] * 4)).tolist() == [1, 0, 0]
    assert np.sign(MajorityVote().combine(votes[:3], [1] * 3)).tolist() == [1, -1, 1]
    with pytest.raises(TypeError, match="only signs can vote"):
        MajorityVote().combine([Dense(np.zeros(3, np.float32))], [1])
