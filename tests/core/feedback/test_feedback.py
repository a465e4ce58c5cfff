"""Error feedback loses nothing, and can be followed without compressing again."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtern import Layout
from fedtern.core.compressors import Sign, SparseTernary
from fedtern.core.feedback import EMPTY, ErrorFeedback, Memoryless


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_error_feedback_loses_nothing(seed):
    rng = np.random.default_rng(seed)
    layout = Layout.flat(60)
    feedback = ErrorFeedback(SparseTernary(0.1))
    state = EMPTY
    produced = np.zeros(60)
    sent = np.zeros(60)
    for _ in range(8):
        delta = rng.standard_normal(60).astype(np.float32)
        produced += delta
        state_before = {name: vector.copy() for name, vector in state.items()}
        update, after = feedback.step(delta, state, layout, rng)
        assert all(np.array_equal(state_before[name], state[name]) for name in state_before)
        if rng.random() < 0.3:
            after = feedback.give_back(after, update)
        else:
            sent += update.to_dense()
        state = after
    assert np.allclose(produced, sent + state["residual"], atol=1e-4)


def test_following_a_known_update_gives_the_same_state_as_the_step():
    rng = np.random.default_rng(2)
    layout = Layout.flat(60)
    feedback = ErrorFeedback(SparseTernary(0.1))
    state = {"residual": rng.standard_normal(60).astype(np.float32)}
    delta = rng.standard_normal(60).astype(np.float32)
    update, after = feedback.step(delta.copy(), state, layout, rng)
    followed = feedback.follow(delta.copy(), state, update)
    assert followed["residual"].tobytes() == after["residual"].tobytes()


def test_memoryless_feedback_has_no_state():
    rng = np.random.default_rng(2)
    feedback = Memoryless(Sign())
    update, state = feedback.step(np.ones(6, np.float32), EMPTY, Layout.flat(6), rng)
    assert not state
    assert not feedback.give_back(state, update)
    assert not feedback.follow(np.ones(6, np.float32), EMPTY, update)
