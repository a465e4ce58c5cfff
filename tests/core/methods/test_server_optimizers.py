"""Server optimisers: their arithmetic, their parameters, and their place in a server."""

from __future__ import annotations

import numpy as np
import pytest

from checks import LAYOUT, METHODS, pair, play_round
from fedtern import Server, fedavg, stc
from fedtern.core.methods import method_from_spec
from fedtern.core.methods.server_optimizers import (
    SERVER_PARAMETERS,
    ServerAdam,
    ServerMomentum,
    make_server_optimizer,
)
from fedtern.core.protocol.records import external_record

OPTIMIZERS = {
    "momentum": ServerMomentum(0.5, 0.8),
    "nesterov": ServerMomentum(0.7, 0.9, nesterov=True),
    "adam": ServerAdam(0.1, 0.9, 0.99, 1e-3),
    "yogi": ServerAdam(0.1, 0.9, 0.99, 1e-3, yogi=True),
}


def expected_changes(name, deltas):
    """Return the changes by the publications' formulas, in float64 and one value at a time."""
    optimizer = OPTIMIZERS[name]
    changes = []
    for values in deltas.T.astype(np.float64):
        mean = 0.0
        squares = 1e-6
        row = []
        for d in values.tolist():
            if name in ("momentum", "nesterov"):
                mean = optimizer.momentum * mean + d
                step = mean if name == "momentum" else d + optimizer.momentum * mean
                row.append(optimizer.learning_rate * step)
                continue
            mean = 0.9 * mean + (1 - 0.9) * d
            if name == "adam":
                squares = 0.99 * squares + (1 - 0.99) * d * d
            elif squares != d * d:
                squares -= (1 - 0.99) * d * d * (1 if squares > d * d else -1)
            row.append(0.1 * mean / (squares**0.5 + 1e-3))
        changes.append(row)
    return np.array(changes).T


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_changes_follow_the_formulas_of_the_publications(name):
    deltas = np.random.default_rng(1).standard_normal((20, 50)).astype(np.float32)
    deltas[3] = 0
    state = {}
    found = []
    for delta in deltas:
        before = {key: vector.copy() for key, vector in state.items()}
        change, next_state = OPTIMIZERS[name].step(delta.copy(), state)
        assert all(np.array_equal(state[key], vector) for key, vector in before.items())
        change_copy = change.copy()
        change[...] = 7  # feedback rules overwrite the change; the state must not depend on it
        state = next_state
        found.append(change_copy)
    np.testing.assert_allclose(found, expected_changes(name, deltas), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_largest_aggregates_give_finite_changes(name):
    delta = np.full(3, 2.0**64, np.float32)
    state = {}
    for _ in range(3):
        change, state = OPTIMIZERS[name].step(delta.copy(), state)
        assert np.isfinite(change).all()
    assert all(np.isfinite(vector).all() for vector in state.values())


def test_momentum_of_zero_and_a_rate_of_one_change_nothing():
    plain, _ = one_federation(fedavg(local_steps=1))
    other, _ = one_federation(fedavg(local_steps=1, server_optimizer="momentum", server_momentum=0))
    assert plain.weights.tobytes() == other.weights.tobytes()


def one_federation(method, rounds=4):
    server, clients = pair(method)
    broadcasts = [play_round(server, clients, [0, 1, 2], t).data for t in range(rounds)]
    return server, broadcasts


OPTIMIZED = ["stc-momentum", "stc-powers-yogi", "fedavg-momentum", "fedavg-adam"]


@pytest.mark.parametrize("name", OPTIMIZED)
def test_a_restored_server_continues_with_the_state_of_its_optimizer(name):
    method = METHODS[name]
    server, clients = pair(method)
    for t in range(3):
        play_round(server, clients, [0, 1, 2], t)
    other = Server(np.zeros(LAYOUT.size), method, LAYOUT)
    other.restore(server.snapshot())
    delta = np.random.default_rng(5).standard_normal(LAYOUT.size).astype(np.float32)
    assert other.finish_round(delta=delta).data == server.finish_round(delta=delta).data
    without = Server(np.zeros(LAYOUT.size), method, LAYOUT)
    kept = server.snapshot()
    arrays = {key: v for key, v in kept.arrays.items() if not key.startswith("optimizer.")}
    without.restore(type(kept)(arrays, kept.meta))
    for each in (server, without):
        each.finish_round(delta=delta)
    assert (without.weights.tobytes(), without.residual.tobytes()) != (
        server.weights.tobytes(),
        server.residual.tobytes(),
    )


@pytest.mark.parametrize("name", OPTIMIZED)
def test_replayed_records_give_the_state_of_the_optimizer(name):
    method = METHODS[name]
    server, clients = pair(method)
    replayed, _ = pair(method)
    for t in range(3):
        for i, client in enumerate(clients):
            client.receive(server.catch_up(i, client.round).data)
            weights = client.weights + np.float32(0.1 * (t + i + 1))
            data = client.send(weights).data
            server.receive(i, data)
            replayed.receive(i, data)
        replayed.replay(b"B" + server.finish_round().data)
    assert replayed.snapshot().to_bytes() == server.snapshot().to_bytes()
    assert any(key.startswith("optimizer.") for key in server.snapshot().arrays)


@pytest.mark.parametrize("name", OPTIMIZED)
def test_replayed_deltas_give_the_state_of_the_optimizer(name):
    server, _ = pair(METHODS[name])
    replayed, _ = pair(METHODS[name])
    for t in range(3):
        delta = np.random.default_rng(t).standard_normal(LAYOUT.size).astype(np.float32)
        broadcast = server.finish_round(delta=delta)
        replayed.replay(external_record(broadcast, delta))
    assert replayed.snapshot().to_bytes() == server.snapshot().to_bytes()


def test_a_round_without_uploads_leaves_the_optimizer_alone():
    server, _ = one_federation(METHODS["fedavg-momentum"])
    before = server.snapshot().arrays["optimizer.velocity"].copy()
    weights = server.weights.copy()
    server.finish_round()
    assert np.array_equal(server.snapshot().arrays["optimizer.velocity"], before)
    assert np.array_equal(server.weights, weights)


def test_specs_hold_the_parameters_of_the_optimizer():
    assert not set(SERVER_PARAMETERS) & set(stc().parameters)
    method = stc(server_optimizer="adam", server_lr=0.05)
    assert method.parameters["server_lr"] == 0.05
    assert method_from_spec(method.spec) == method
    assert method.server_optimizer == ServerAdam(0.05)
    assert fedavg(server_optimizer="nesterov").server_optimizer == ServerMomentum(nesterov=True)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"server_optimizer": "adam", "server_lr": 0.0}, "server_lr must be positive"),
        ({"server_optimizer": "momentum", "server_momentum": 1.0}, r"must be in \[0, 1\), got 1.0"),
        ({"server_optimizer": "yogi", "server_beta2": 1.0}, r"server_beta2 must be in \[0, 1\)"),
        ({"server_optimizer": "yogi", "server_epsilon": 0.0}, "server_epsilon must be from"),
        ({"server_lr": 0.5}, "server_lr has no effect with server_optimizer=None"),
        ({"server_optimizer": "momentum", "server_beta2": 0.9}, "server_beta2 has no effect"),
        ({"server_optimizer": "sgd"}, "server_optimizer must be"),
    ],
)
def test_invalid_or_unused_parameters_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        stc(**parameters)


def test_no_name_gives_no_optimizer():
    assert make_server_optimizer(None) is None
