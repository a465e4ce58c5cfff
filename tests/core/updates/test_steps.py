"""Steps: updates on a grid, whose sums are exact in any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks import LAYOUT, pair, play_round
from fedtern import Client, Layout, NonFiniteError, Server, stc
from fedtern.core.compressors import SparseSteps
from fedtern.core.feedback import ErrorFeedback
from fedtern.core.protocol import How
from fedtern.core.protocol.replica import Replica
from fedtern.core.updates import Steps
from fedtern.core.updates.steps import MAX_STEPS, round_to_grid, sum_steps

METHOD = stc(p_up=0.1, p_down=0.1, codec="adaptive", magnitudes="powers")
seeds = st.integers(0, 2**32)


def random_steps(rng: np.random.Generator, size: int, per_tensor: bool = False) -> Steps:
    indices = np.flatnonzero(rng.random(size) < 0.3)
    steps = np.where(rng.random(indices.size) < 0.5, 1, -1).astype(np.int32)
    ends = np.array([size // 3, size]) if per_tensor else None
    used = [indices.size > 0]
    if ends is not None:
        used = (np.diff(np.searchsorted(indices, ends), prepend=0) > 0).tolist()
    exponents = np.where(used, rng.integers(-24, 3, len(used)), 0)
    return Steps(size, indices, steps, exponents, ends)


@given(seeds, st.integers(1, 40), st.booleans())
def test_a_sum_has_the_same_effect_as_its_updates_in_any_order(seed, size, per_tensor):
    rng = np.random.default_rng(seed)
    updates = [random_steps(rng, size, per_tensor) for _ in range(rng.integers(1, 8))]
    start = round_to_grid((rng.standard_normal(size) * 8).astype(np.float32))
    replicas = [Replica(start.copy()) for _ in range(3)]
    for update in updates:
        replicas[0].apply(update)
    for i in rng.permutation(len(updates)):
        replicas[1].apply(updates[i])
    total = sum_steps(updates)
    assert total is not None
    replicas[2].apply(total)
    exact = [replica.exact_weights(np.arange(size)).tobytes() for replica in replicas]
    assert exact[0] == exact[1] == exact[2]
    assert len({replica.weights.tobytes() for replica in replicas}) == 1


def test_a_sum_keeps_its_segments_and_drops_changes_that_cancel_out():
    ends = np.array([2, 4])
    up = Steps(4, np.array([0, 3]), np.int32([1, 1]), np.array([-3, -5]), ends)
    down = Steps(4, np.array([0]), np.int32([-1]), np.array([-3, 0]), ends)
    total = sum_steps([up, down])
    assert total is not None
    assert total.indices.tolist() == [3]
    assert total.exponents.tolist() == [0, -5]


def test_steps_too_large_for_an_integer_have_no_sum():
    large = Steps(2, np.array([0]), np.int32([MAX_STEPS]), np.array([0]))
    assert sum_steps([large, large]) is None


@given(seeds)
def test_rounding_to_the_grid_changes_little_and_only_once(seed):
    rng = np.random.default_rng(seed)
    weights = (rng.standard_normal(50) * 10.0 ** rng.integers(-9, 5, 50)).astype(np.float32)
    rounded = round_to_grid(weights)
    assert np.abs(rounded.astype(np.float64) - weights).max() <= 2.0**-25
    assert round_to_grid(rounded).tobytes() == rounded.tobytes()
    assert rounded[np.abs(weights) >= 1].tobytes() == weights[np.abs(weights) >= 1].tobytes()


def test_a_magnitude_is_kept_while_the_mean_is_near_it():
    link = ErrorFeedback(SparseSteps(p=0.5))
    layout = Layout.flat(2)
    rng = np.random.default_rng(0)
    state = {}
    exponents = []
    for mean in (1.0, 1.6, 0.62, 1.7, 1.25, 0.5):
        update, state = link.step(np.float32([mean, 0]), state, layout, rng)
        state = {"exponents": state["exponents"]}  # without the residual, to see the mean alone
        exponents.append(int(update.exponents[0]))
    assert exponents == [0, 0, 0, 1, 1, -1]


def test_a_residual_keeps_the_difference_to_the_power_of_two():
    link = ErrorFeedback(SparseSteps(p=0.5))
    update, state = link.step(np.float32([3.25, 0.5]), {}, Layout.flat(2), np.random.default_rng(0))
    assert update.to_dense().tolist() == [4.0, 0.0]
    assert state["residual"].tolist() == [-0.75, 0.5]


@pytest.mark.parametrize("lag", [1, 2, 30, 300, pytest.param(1000, marks=pytest.mark.slow)])
def test_replicas_are_bit_exact_after_long_absences(lag):
    layout = Layout(("a", "b"), ((20, 30), (40,)))
    server, clients = pair(METHOD, layout, clients=3)
    for t in range(lag):
        play_round(server, clients, [0, 1], seed=t)
    caught_up = server.catch_up(2, 0)
    assert caught_up.how == How.SUM
    clients[2].receive(caught_up.data)
    assert clients[2].weights.tobytes() == server.weights.tobytes()


def test_a_sum_is_much_shorter_than_a_replay():
    layout = Layout(("a",), ((50, 60),))
    server, clients = pair(METHOD, layout, clients=3)
    sizes = [len(play_round(server, clients, [0, 1], seed=t).data) for t in range(30)]
    assert len(server.catch_up(2, 0).data) < 0.5 * sum(sizes)


def test_large_weights_keep_their_low_parts_in_every_catch_up():
    """Weights above 1 have bits that float32 cannot hold; replicas must agree on them, too."""
    rng = np.random.default_rng(0)
    start = (rng.standard_normal(LAYOUT.size) * 0.9).astype(np.float32)
    server = Server(start, METHOD, LAYOUT)
    client = Client(0, METHOD, LAYOUT, start)
    late = Client(1, METHOD, LAYOUT)
    for t in range(60):
        scale = np.float32(1000.0 if t == 3 else 1e-5)
        delta = scale * rng.standard_normal(LAYOUT.size).astype(np.float32)
        client.receive(server.catch_up(0, client.round).data)
        server.receive(0, client.send_delta(delta).data)
        server.finish_round()
    assert server._replica.low_parts is not None
    late.receive(server.catch_up(1, -1).data)
    restored = Server(start, METHOD, LAYOUT)
    restored.restore(server.snapshot())
    client.receive(server.catch_up(0, client.round).data)
    everywhere = np.arange(LAYOUT.size)
    exact = {
        party._replica.exact_weights(everywhere).tobytes()
        for party in (server, client, late, restored)
    }
    assert len(exact) == 1


def test_a_weight_beyond_the_range_is_refused_by_name():
    server, clients = pair(METHOD)
    delta = np.zeros(LAYOUT.size, np.float32)
    delta[1] = 2.0**23  # two steps of 2**22, the largest power
    server.receive(0, clients[0].send_delta(delta).data)
    clients[0].receive(server.finish_round().data)
    before = server.snapshot().to_bytes()
    server.receive(0, clients[0].send_delta(delta).data)
    with pytest.raises(NonFiniteError, match=r"at conv\[0, 0, 1\] is too large"):
        server.finish_round()
    server.discard(0)
    assert server.snapshot().to_bytes() == before


@pytest.mark.parametrize("initial", ["exact", "int8"])
def test_clients_get_the_difference_to_the_initial_model_without_cached_broadcasts(initial):
    rng = np.random.default_rng(0)
    layout = Layout(("a", "b"), ((60, 50), (30,)))
    start = rng.standard_normal(layout.size).astype(np.float32)
    options = {"initial": initial}
    server = Server(start, METHOD, layout, cache_bytes=3000, **options)
    busy = Client(0, METHOD, layout, start, **options)
    for _ in range(40):
        busy.receive(server.catch_up(0, busy.round).data)
        delta = 0.01 * rng.standard_normal(layout.size).astype(np.float32)
        server.receive(0, busy.send_delta(delta).data)
        server.finish_round()
    restored = Server(start, METHOD, layout, cache_bytes=3000, **options)
    restored.restore(server.snapshot())
    for source in (server, restored):
        for first in (0, -1) if initial == "int8" else (0,):
            client = Client(1, METHOD, layout, *([start] if first == 0 else []), **options)
            caught_up = source.catch_up(1, first)
            assert caught_up.how == (How.SUM if first == 0 else How.START)
            assert len(caught_up.data) < 0.6 * 4 * layout.size
            client.receive(caught_up.data)
            assert client.weights.tobytes() == server.weights.tobytes()
