"""Feedback rules keep values that were not sent, each rule in its own way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import LAYOUT, random_vector, vectors
from fedtern import Layout
from fedtern.core.compressors import Sign, SparseTernary, Threshold, TopK
from fedtern.core.feedback import (
    EMPTY,
    DecayingFeedback,
    ErrorFeedback,
    Memoryless,
    MomentumCorrection,
    PowerIteration,
    VarianceThreshold,
)
from fedtern.core.feedback.variance_threshold import powers_of_two
from fedtern.core.updates import is_empty


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_error_feedback_loses_nothing(seed):
    generator = rng(seed)
    layout = Layout.flat(60)
    feedback = ErrorFeedback(SparseTernary(0.1))
    state = EMPTY
    produced = np.zeros(60)
    sent = np.zeros(60)
    for _ in range(8):
        delta = generator.standard_normal(60).astype(np.float32)
        produced += delta
        state_before = {name: vector.copy() for name, vector in state.items()}
        update, after = feedback.step(delta, state, layout, generator)
        assert all(np.array_equal(state_before[name], state[name]) for name in state_before)
        if generator.random() < 0.3:
            after = feedback.give_back(after, update)
        else:
            sent += update.to_dense()
        state = after
    assert np.allclose(produced, sent + state["residual"], atol=1e-4)


def test_following_a_known_update_gives_the_same_state_as_the_step():
    generator = rng(2)
    layout = Layout.flat(60)
    feedback = ErrorFeedback(SparseTernary(0.1))
    state = {"residual": generator.standard_normal(60).astype(np.float32)}
    delta = generator.standard_normal(60).astype(np.float32)
    update, after = feedback.step(delta.copy(), state, layout, generator)
    followed = feedback.follow(delta.copy(), state, update)
    assert followed["residual"].tobytes() == after["residual"].tobytes()


def test_memoryless_feedback_has_no_state():
    generator = rng(2)
    feedback = Memoryless(Sign())
    update, state = feedback.step(np.ones(6, np.float32), EMPTY, Layout.flat(6), generator)
    assert not state
    assert not feedback.give_back(state, update)
    assert not feedback.follow(np.ones(6, np.float32), EMPTY, update)


def test_error_feedback_sends_the_residual_once_it_exceeds_the_threshold():
    feedback = ErrorFeedback(Threshold(1.0))
    state = EMPTY
    for expected in ([1, 0, -1], [1, 1, -1], [1, 0, -1]):
        delta = np.float32([2.5, 0.6, -1.1])
        update, state = feedback.step(delta, state, Layout.flat(3), rng())
        assert update.to_dense().tolist() == expected


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=40)
def test_a_power_iteration_never_increases_the_error(seed, zeros):
    x = random_vector(rng(seed), LAYOUT.size, zeros)
    x64 = x.astype(np.float64)
    update, _ = PowerIteration(1).step(x.copy(), EMPTY, LAYOUT, rng())
    error = ((x64 - update.to_dense()) ** 2).sum()
    assert error <= (x64**2).sum() * (1 + 1e-5)


def test_power_iterations_converge_to_the_best_factors():
    """With a warm start, a few rounds of the same matrix give its singular vectors."""
    layout = Layout(("w",), ((40, 30),))
    matrix = rng(1).standard_normal((40, 30)) * 0.05
    matrix += np.outer(rng(2).standard_normal(40), rng(3).standard_normal(30))
    feedback = PowerIteration(2)
    state = EMPTY
    for _ in range(12):
        query = {name: v for name, v in state.items() if name == "query"}
        update, state = feedback.step(matrix.reshape(-1).astype(np.float32), query, layout, rng())
    left, sizes, right = np.linalg.svd(matrix)
    best = (left[:, :2] * sizes[:2]) @ right[:2]
    error = np.linalg.norm(matrix - update.to_dense().reshape(40, 30))
    assert error <= np.linalg.norm(matrix - best) * 1.02


def test_power_iterations_recover_after_a_delta_of_zeros():
    """A layer can be frozen at first, and its first rows can stay zero."""
    layout = Layout(("kernel",), ((40, 10),))
    generator = rng()
    feedback = PowerIteration(2)
    state = EMPTY
    norms = []
    for _ in range(3):
        delta = generator.standard_normal((40, 10)).astype(np.float32)
        delta[:5] = 0
        delta *= bool(norms)
        update, state = feedback.step(delta.reshape(-1), state, layout, generator)
        norms.append(float(np.linalg.norm(update.to_dense())))
    assert norms[0] == 0
    assert min(norms[1:]) > 5


def test_momentum_correction_sends_plain_deltas_if_it_sends_every_value():
    """Velocities are reset for values that were sent, so none is left."""
    feedback = MomentumCorrection(p=1.0)
    state = EMPTY
    for t in range(3):
        delta = rng(t).standard_normal(LAYOUT.size).astype(np.float32)
        update, state = feedback.step(delta.copy(), state, LAYOUT, rng())
        assert np.array_equal(update.to_dense(), delta)
    assert not state["velocity"].any()


def test_momentum_correction_accumulates_velocities_until_they_are_sent():
    layout = Layout.flat(2)
    feedback = MomentumCorrection(p=0.5, momentum=0.5)
    state = EMPTY
    sent = []
    for _ in range(4):
        update, state = feedback.step(np.float32([8, 3]), state, layout, rng())
        sent.append(update.to_dense().tolist())
    # The second weight's residual: 3, 3 + 4.5, 3 + 4.5 + 5.25 > 8.
    assert sent == [[8, 0], [8, 0], [0, 12.75], [20, 0]]


def test_momentum_correction_clips_long_deltas():
    feedback = MomentumCorrection(p=1.0, clip=5.0)
    update, _ = feedback.step(np.float32([30, 40]), EMPTY, Layout.flat(2), rng())
    assert update.to_dense() == pytest.approx([3, 4])


def test_the_warm_up_of_momentum_correction_starts_with_a_quarter_of_the_values():
    feedback = MomentumCorrection(0.01, warmup=1)
    state = EMPTY
    counts = []
    for t in range(5):
        delta = rng(t).standard_normal(1000).astype(np.float32)
        update, state = feedback.step(delta, state, Layout.flat(1000), rng())
        counts.append(update.indices.size)
    assert counts == [250, 62, 15, 10, 10]


def test_values_of_high_variance_are_not_sent():
    feedback = VarianceThreshold(alpha=1.5)
    layout = Layout.flat(2)
    state = EMPTY
    sent = []
    for t in range(4):
        delta = np.float32([1, 1 if t % 2 else -1])  # constant, and alternating
        moments = np.float32([0.9, 0.9])
        update, state = feedback.step(delta, state, layout, rng(), moments)
        sent.append(update.to_dense().tolist())
    assert sent == [[0, 0], [2, 0], [0, 0], [2, 0]]


def test_without_moments_a_delta_counts_as_one_example():
    feedback = VarianceThreshold(alpha=1.5)
    layout = Layout.flat(1)
    state = EMPTY
    sent = []
    for _ in range(4):
        update, state = feedback.step(np.float32([1]), state, layout, rng())
        sent.append(update.to_dense()[0])
    assert sent == [0, 2, 0, 2]  # 1 is not above 1.5 * 1, but 2**2 is above 1.5 * 2


def test_a_single_example_never_passes_the_threshold_by_rounding():
    layout = Layout.flat(5000)
    generator = rng()
    delta = generator.standard_normal(5000).astype(np.float32)
    update, _ = VarianceThreshold().step(delta, EMPTY, layout, generator)
    assert is_empty(update)


@given(vectors)
def test_powers_of_two_are_within_a_third_of_the_value_or_capped(x):
    update = powers_of_two(x, np.flatnonzero(x), Layout.flat(x.size))
    exact = x[update.indices].astype(np.float64)
    ratio = update.values / exact
    assert np.all((ratio > 0.5) & (ratio <= 4 / 3 + 1e-6))
    assert np.all(np.frexp(np.abs(update.values))[0] == 0.5)


def test_decaying_residuals_follow_the_recursion_of_the_publications():
    """E = decay e + delta; the update is that of e; e loses the update."""
    layout = Layout.flat(40)
    rule = DecayingFeedback(TopK(0.1), 0.9)
    generator = np.random.default_rng(3)
    state = {}
    expected = np.zeros(40)
    for _ in range(6):
        delta = generator.standard_normal(40).astype(np.float32)
        expected = 0.9 * expected + delta
        before = {name: vector.copy() for name, vector in state.items()}
        update, following = rule.step(delta.copy(), state, layout, generator)
        assert np.allclose(update.to_dense()[update.indices], expected[update.indices], atol=1e-5)
        expected -= update.to_dense()
        assert np.allclose(following["residual"], expected, atol=1e-5)
        assert same_state(rule.follow(delta.copy(), state, update), following)
        assert same_state(before, state)
        state = following
    returned = rule.give_back(state, update)
    assert np.allclose(returned["residual"], state["residual"] + update.to_dense())


def same_state(a, b):
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
