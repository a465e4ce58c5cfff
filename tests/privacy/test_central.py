"""The central model: sensitivity, noise, refusals, budget and restarts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from checks import LAYOUT, METHODS
from fedtern import (
    Carried,
    Client,
    DurableServer,
    Layout,
    LocalProtocolError,
    Server,
    Store,
    StoreError,
    fedavg,
    signsgd,
    stc,
)
from fedtern.core.errors import BudgetExceeded
from fedtern.core.feedback import EMPTY, State
from fedtern.core.updates import Dense, Sparse, Ternary
from fedtern.federation.round_controller import RoundController, RoundFinished
from fedtern.federation.round_policy import RoundPolicy
from fedtern.privacy import CentralPrivacy, LocalPrivacy, privacy_loss
from fedtern.privacy.secure import secure_topk

pytest.importorskip("dp_accounting")
SIZE = LAYOUT.size
STC = METHODS["stc"]
values = st.floats(-1e6, 1e6, width=32)
vectors = arrays(np.float32, SIZE, elements=values)
# Under privacy, a method must average updates without weights.
PRIVATE = {
    name: method
    for name, method in METHODS.items()
    if method.aggregate.part_id == "mean" and not method.aggregate.weighted
}


def dense_updates(vector):
    return Dense(vector)


def sparse_updates(vector):
    indices = np.flatnonzero(vector)
    return Sparse(SIZE, indices, vector[indices])


def ternary_updates(vector):
    indices = np.flatnonzero(vector)
    mu = np.abs(vector).max(initial=0, keepdims=True)
    return Ternary(SIZE, indices, vector[indices] > 0, mu)


updates = st.builds(
    lambda make, vector: make(vector),
    st.sampled_from([dense_updates, sparse_updates, ternary_updates]),
    vectors,
)


def make_privacy(**options) -> CentralPrivacy:
    given = {"clip": 0.5, "noise_multiplier": 2.0, "clients_per_round": 3, "seed": 1}
    return CentralPrivacy(**{**given, **options})


def make_server(privacy, method=STC, **options) -> Server:
    return Server(np.zeros(SIZE), method, LAYOUT, privacy=privacy, **options)


def make_clients(method=STC, count=3) -> list[Client]:
    return [Client(i, method, LAYOUT, np.zeros(SIZE)) for i in range(count)]


def play_round(server, clients, next_cohort=None):
    for client in clients:
        delta = np.random.default_rng([client.client_id, server.round]).normal(size=SIZE)
        server.receive(client.client_id, client.send_delta(delta).data)
    broadcast = server.finish_round(next_cohort)
    for client in clients:
        client.receive(broadcast.data)
    return broadcast


@settings(max_examples=200, deadline=None)
@given(st.lists(updates, max_size=5), updates, st.floats(1e-3, 1e3), st.integers(1, 9))
def test_one_client_moves_the_mean_by_at_most_the_sensitivity(others, update, clip, expected):
    privacy = make_privacy(clip=clip, clients_per_round=expected)
    without = privacy.clipped_mean(others, SIZE)
    with_client = privacy.clipped_mean([*others, update], SIZE)
    assert privacy.sensitivity == clip / expected
    assert np.linalg.norm(with_client - without) <= privacy.sensitivity * (1 + 1e-9)


def test_updates_within_the_clip_are_not_changed():
    update = np.full(SIZE, 0.01, np.float32)
    mean = make_privacy(clip=1.0).clipped_mean([Dense(update)] * 3, SIZE)
    np.testing.assert_allclose(mean, update, rtol=1e-6)


def test_the_divisor_is_the_expected_cohort_and_not_the_actual_one():
    update = Dense(np.full(SIZE, 0.01, np.float32))
    privacy = make_privacy(clip=1.0, clients_per_round=10)
    one = privacy.clipped_mean([update], SIZE)
    np.testing.assert_allclose(privacy.clipped_mean([update] * 5, SIZE), 5 * one)


@pytest.mark.parametrize("method", PRIVATE.values(), ids=PRIVATE)
def test_a_residual_cannot_raise_the_influence_of_a_client(method):
    """The upload is clipped after it is decoded, with everything the residual has added to it."""
    privacy = make_privacy(clip=1e-3)
    server = make_server(privacy, method)
    client = make_clients(method, 1)[0]
    for round in range(3):
        client.send_delta(np.full(SIZE, 5.0))
        server.receive(0, client.pending)
        mean = privacy.clipped_mean([u.update for u in server.uploads()], SIZE)
        assert np.linalg.norm(mean) <= privacy.sensitivity * (1 + 1e-6), round
        client.receive(server.finish_round().data)


def test_the_noise_on_an_aggregate_has_the_stated_variance():
    size = 200_000
    privacy = CentralPrivacy(clip=0.5, noise_multiplier=2.0, clients_per_round=4)
    update = Dense(np.zeros(size, np.float32))
    noise = privacy.release([update, update], size, round=0)
    assert abs(noise.std() / (2.0 * 0.5 / 4) - 1) < 5 / (2 * size) ** 0.5
    assert abs(noise.mean()) < 5 * noise.std() / size**0.5


@pytest.mark.parametrize("method", PRIVATE.values(), ids=PRIVATE)
def test_a_server_broadcasts_the_noised_mean_and_keeps_the_rest_in_its_residual(method):
    server = make_server(make_privacy(), method)
    clients = make_clients(method)
    total = np.zeros(SIZE)
    optimizer_state: State = EMPTY
    for _ in range(3):
        before = server.weights.copy()
        play_round(server, clients)
        change = server.released.copy()
        if method.server_optimizer is not None:
            change, optimizer_state = method.server_optimizer.step(change, optimizer_state)
        total += change
        assert all((client.weights == server.weights).all() for client in clients)
        assert (server.weights != before).any()
    if method.down.loss in ("none", "error feedback") and method.momentum != "feedback":
        np.testing.assert_allclose(server.weights + server.residual, total, atol=1e-5)


def test_the_same_seed_gives_the_same_broadcasts():
    def broadcasts(seed):
        server = make_server(make_privacy(seed=seed))
        return [play_round(server, clients).data for clients in [make_clients()] for _ in "abc"]

    assert broadcasts(1) == broadcasts(1)
    assert broadcasts(1) != broadcasts(2)


def test_a_round_without_uploads_spends_nothing_and_changes_nothing():
    server = make_server(make_privacy())
    server.finish_round()
    assert not server.weights.any()
    assert server.privacy_spent.epsilon == 0


def test_epsilon_is_that_of_the_client_that_took_part_most_often():
    server = make_server(make_privacy())
    clients = make_clients()
    for present in ([0, 1], [1, 2], [1]):
        uploading = [clients[i] for i in present]
        absent = [client for client in clients if client not in uploading]
        broadcast = play_round(server, uploading)
        for client in absent:
            client.receive(broadcast.data)
    assert server.privacy_spent.participations == 3
    assert server.privacy_spent.epsilon == privacy_loss(2.0, 3, 1e-5)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (fedavg(weighted=True), "does not support weighted=True"),
        (signsgd(), "aggregation 'majority_vote'"),
        (fedavg(aggregate="median"), "central differential privacy does not support aggregate=med"),
    ],
    ids=["weighted", "vote", "median"],
)
def test_methods_that_release_other_statistics_are_refused(method, message):
    with pytest.raises(ValueError, match=message):
        make_server(make_privacy(), method)


def test_carried_tensors_are_refused():
    layout = Layout(("w",), ((4,),), carried=(Carried("bn.running_mean", (2,), "float32"),))
    with pytest.raises(ValueError, match=r"does not support carried tensors such as 'bn\.running"):
        Server(
            np.zeros(4),
            stc(),
            layout,
            carried={"bn.running_mean": np.zeros(2, np.float32)},
            privacy=make_privacy(),
        )


@pytest.mark.parametrize("options", [{"delta": np.ones(SIZE)}, {"aggregate": STC.aggregate}])
def test_other_aggregates_are_refused_by_a_private_server(options):
    server = make_server(make_privacy())
    with pytest.raises(LocalProtocolError, match="aggregates by itself"):
        server.finish_round(**options)


def test_a_round_beyond_the_budget_is_refused_and_changes_nothing():
    server = make_server(make_privacy(budget=privacy_loss(2.0, 2, 1e-5)))
    clients = make_clients()
    play_round(server, clients)
    assert server.allows_round()
    assert not server.allows_round(counted=[0])
    play_round(server, clients)
    assert not server.allows_round()
    before = server.snapshot().digest
    server.receive(0, clients[0].send_delta(np.ones(SIZE)).data)
    with pytest.raises(BudgetExceeded, match="client 0 would spend epsilon"):
        server.finish_round()
    server.discard(0)
    assert server.snapshot().digest == before


def test_a_controller_ends_the_federation_at_the_budget():
    server = make_server(make_privacy(budget=privacy_loss(2.0, 2, 1e-5)))
    rounds = RoundController(server, RoundPolicy(rounds=10, min_clients=3, grace=0))
    clients = make_clients()
    rounds.connected(0.0)
    for client in clients:
        rounds.client_present(client.client_id)
    rounds.tick(0.0)
    finished = []
    while not rounds.ended:
        for client in clients:
            rounds.receive(client.client_id, client.send_delta(np.ones(SIZE)).data)
        outcome = rounds.tick(1.0)
        assert isinstance(outcome, RoundFinished)
        finished.append(outcome)
        for client in clients:
            client.receive(outcome.broadcast.data)
    assert [len(outcome.next_cohort) for outcome in finished] == [3, 0]
    assert server.privacy_spent.epsilon <= server.privacy.budget


def open_durable(path: Path, stack: list[Store], **options) -> DurableServer:
    for store in stack:
        store.close()
    stack[:] = [Store(path)]
    return DurableServer(make_server(make_privacy(seed=None, **options)), stack[0])


@pytest.mark.parametrize("snapshots", [False, True], ids=["from the log", "from a snapshot"])
def test_a_restart_neither_repeats_nor_loses_noise_and_keeps_the_account(tmp_path, snapshots):
    stores: list[Store] = []
    server = open_durable(tmp_path, stores)
    clients = make_clients()
    broadcasts = []
    for round in range(4):
        broadcasts.append(play_round(server, clients).data)
        if snapshots and round == 2:
            stores[0].checkpoint(server.server.snapshot())
        before = server.server.snapshot()
        server = open_durable(tmp_path, stores)
        assert server.recovered
        # Weights, residual and account are those before, so the noise was read, not drawn.
        assert server.server.snapshot().digest == before.digest
        assert server.newest_broadcast(round) == broadcasts[-1]
        assert server.privacy_spent.participations == round + 1
    stores[0].close()


def test_noise_that_was_not_recorded_was_not_broadcast_either(tmp_path):
    """A process that dies while it finishes a round draws other noise after its restart."""
    stores: list[Store] = []
    server = open_durable(tmp_path, stores)
    client = make_clients(count=1)[0]
    server.receive(0, client.send_delta(np.ones(SIZE)).data)
    lost = server.server.finish_round()  # in memory only, and never returned by the durable server
    server = open_durable(tmp_path, stores)
    assert server.uploaded == {0}
    assert server.privacy_spent.participations == 0
    assert server.finish_round().data != lost.data
    stores[0].close()


@pytest.mark.parametrize(
    "change", [{"noise_multiplier": 1.0}, {"clip": 1.0}, {"clients_per_round": 4}]
)
def test_a_store_of_other_privacy_settings_is_refused(tmp_path, change):
    stores: list[Store] = []
    open_durable(tmp_path, stores)
    with pytest.raises(StoreError, match="privacy"):
        open_durable(tmp_path, stores, **change)
    stores[0].close()


def test_a_private_server_and_one_without_privacy_do_not_share_a_store(tmp_path):
    for first, second in ((None, make_privacy()), (make_privacy(), None)):
        path = tmp_path / str(first is None)
        with Store(path) as store:
            DurableServer(make_server(first), store)
        with Store(path) as store, pytest.raises(StoreError, match="privacy"):
            DurableServer(make_server(second), store)


def test_secure_aggregation_is_refused():
    method = secure_topk(p_up=1 / 2)
    with pytest.raises(ValueError, match="does not support secure_topk: masks hide"):
        Server(np.zeros(8), method, privacy=CentralPrivacy(1.0, 1.0, clients_per_round=4))
    with pytest.raises(ValueError, match="does not support secure_topk: masks hide"):
        Client(0, method, weights=np.zeros(8), privacy=LocalPrivacy(1.0, 1.0))
