"""Catch-ups lead to exactly the same weights, are short, and come from a bounded cache."""

from __future__ import annotations

import numpy as np
import pytest

from checks import LAYOUT, METHODS, is_memoryless, pair, play_round, trained
from fedtern import (
    Client,
    Layout,
    LocalProtocolError,
    MissedRounds,
    RemoteProtocolError,
    Server,
    Snapshot,
    stc,
)
from fedtern.core.envelope import ADDRESSED_CATCH_UP
from fedtern.core.layout import Carried
from fedtern.core.protocol import How, Upload
from fedtern.core.protocol.catchup import MODEL, REPLAY, SUM, Addressee, CatchUpBuilder, read_lag
from fedtern.core.updates import is_empty

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def mode_of(data: bytes, server: Server) -> int:
    _, reader = server.terms.open(data, ADDRESSED_CATCH_UP)
    reader.varint()
    return read_lag(reader, is_addressed=True)[3]


@every_method
def test_replicas_are_bit_exact_at_any_lag(method):
    server, clients = pair(method, clients=5)
    for t in range(25):
        # Client 4 takes part in the first round only.
        play_round(server, clients, [t % 2, 2 + t % 2] if t else [4], seed=t)
    for client in clients:
        client.receive(server.catch_up(client.client_id, client.round).data)
        assert client.weights.tobytes() == server.weights.tobytes()


@every_method
def test_a_client_without_weights_can_join(method):
    server, clients = pair(method)
    for t in range(5):
        play_round(server, clients, [0, 1], seed=t)
    late = Client(77, method, LAYOUT)
    assert late.round == -1
    with pytest.raises(LocalProtocolError, match="catch up first"):
        _ = late.weights
    with pytest.raises(MissedRounds):
        late.receive(server.finish_round().data)
    assert late.receive(server.catch_up(77, late.round).data).is_new
    clients.append(late)
    for t in range(5, 8):
        late.receive(server.catch_up(77, late.round).data)
        play_round(server, clients, [0, 2], seed=t)
    late.receive(server.catch_up(77, late.round).data)
    assert late.weights.tobytes() == server.weights.tobytes()


@every_method
def test_broadcasts_and_catch_ups_lead_to_the_same_weights(method):
    server, clients = pair(method)
    for t in range(10):
        broadcast = play_round(server, clients, [0], seed=t)
        assert clients[0].receive(broadcast.data).is_new
        assert clients[1].receive(broadcast.data).is_new
        assert not clients[1].receive(broadcast.data).is_new
    clients[2].receive(server.catch_up(2, 0).data)
    assert {c.weights.tobytes() for c in clients} == {server.weights.tobytes()}


@every_method
def test_every_kind_of_catch_up_leads_to_the_same_weights(method):
    """All three kinds must work, although the server sends only the shortest."""
    server, clients = pair(method, clients=4)
    broadcasts = [play_round(server, clients, [0, 1], seed=t) for t in range(4)]
    first_stamp = broadcasts[0].header.stamp
    builder = CatchUpBuilder(0, server.round, False, server.terms, Addressee(9, first_stamp))
    weights, sign_counts = server._replica.base_and_signs()
    messages = [
        builder.replay([b.data for b in broadcasts], first_stamp),
        builder.model(weights, sign_counts, server.stamp),
    ]
    missed = server._history.broadcasts_since(0)  # None if the model is shorter than a replay
    payload = server._history.encoded_sum(missed, server._replica) if missed else None
    if payload is not None:
        messages.append(builder.sum(payload, first_stamp, server.stamp))
    for message in messages:
        client = Client(9, method, LAYOUT, pair(method)[0].weights)
        assert client.receive(message).is_new
        assert client.weights.tobytes() == server.weights.tobytes()
    assert len(server.catch_up(9, 0).data) <= min(map(len, messages)) + 4


def test_the_shortest_kind_of_catch_up_is_sent():
    layout = Layout.flat(400)
    kinds = {}
    for name, lag in (("sgd", 1), ("sgd", 3), ("stc", 6), ("signsgd", 6), ("signsgd", 1)):
        server, clients = pair(METHODS[name], layout, clients=2)
        for t in range(lag):
            play_round(server, clients, [0], seed=t)
        kinds[name, lag] = mode_of(server.catch_up(1, 0).data, server)
    assert kinds == {
        ("sgd", 1): MODEL,  # as long as a dense broadcast, but without acknowledgements
        ("sgd", 3): MODEL,
        ("stc", 6): SUM,  # one envelope instead of six
        ("signsgd", 6): SUM,  # three bits per parameter instead of six
        ("signsgd", 1): SUM,
    }
    server, clients = pair(METHODS["topk"], Layout.flat(4000), clients=2)
    play_round(server, clients, [0])
    assert mode_of(server.catch_up(1, 1).data, server) == REPLAY  # an empty replay


def test_a_sum_of_signs_takes_at_most_log2_of_2s_plus_1_bits_per_parameter():
    layout = Layout.flat(10_000)
    server, clients = pair(METHODS["signsgd"], layout, clients=2)
    for t in range(16):
        play_round(server, clients, [0], seed=t)
        lag = t + 1
        payload = 8 * (len(server.catch_up(1, 0).data) - 32)
        assert payload <= layout.size * np.log2(2 * lag + 1)


def test_the_cache_stays_within_its_limit_while_clients_catch_up():
    start = np.zeros(2000, np.float32)
    small = Server(start, stc(1 / 50, 1 / 50), cache_bytes=12_000)
    large = Server(start, stc(1 / 50, 1 / 50), cache_bytes=10**6)
    client = Client(0, small.terms.method, weights=start)
    num_cached = []
    for t in range(60):
        client.receive(small.catch_up(0, client.round).data)
        data = client.send(trained(client, t)).data
        for server in (small, large):
            server.receive(0, data)
            server.finish_round()
            server.catch_up(1, max(small.round - 3, 0))  # the sum for it is cached, too
        num_cached.append(len(small._history.encoded_broadcasts()))
    restored = Server(start, small.terms.method, cache_bytes=12_000)
    restored.restore(Snapshot.from_bytes(small.snapshot().to_bytes()))
    restored.catch_up(1, small.round - 3)
    assert restored._history.nbytes == small._history.nbytes <= 12_000
    assert 10 < max(num_cached) < 40
    # Messages do not depend on which updates are still decoded.
    assert len(small._history._decoded) < 5
    for since in range(small.round - min(num_cached[-5:]), small.round):
        messages = {server.catch_up(1, since).data for server in (small, large, restored)}
        assert len(messages) == 1


def test_a_smaller_cache_gives_longer_catch_ups_to_the_same_weights():
    server, clients = pair(METHODS["stc"], Layout.flat(4000), clients=2)
    small = Server(server.weights, METHODS["stc"], Layout.flat(4000), cache_bytes=9000)
    for t in range(30):
        data = clients[0].send(trained(clients[0], t)).data
        for each in (server, small):
            each.receive(0, data)
        assert small.finish_round().data == server.finish_round().data
        clients[0].receive(server.catch_up(0, t).data)
    assert small._history.nbytes <= 9000
    assert len(small.catch_up(1, 0).data) > 16_000 > len(server.catch_up(1, 0).data)
    assert len(small.catch_up(1, 29).data) < 1000
    clients[1].receive(small.catch_up(1, 0).data)
    assert clients[1].weights.tobytes() == server.weights.tobytes()


def test_broadcasts_that_cannot_be_merged_are_not_decoded_again(monkeypatch):
    method = METHODS["ef_signsgd-both-ways"]
    server, clients = pair(method, Layout.flat(4000), clients=2)
    small = Server(server.weights, method, Layout.flat(4000), cache_bytes=20_000)
    for t in range(9):
        small.receive(0, clients[0].send(trained(clients[0], t)).data)
        clients[0].receive(small.finish_round().data)
    assert len(small._history.encoded_broadcasts()) > len(small._history._decoded)
    monkeypatch.setattr("fedtern.core.protocol.history.Broadcast.open", None)
    assert mode_of(small.catch_up(1, 0).data, small) == REPLAY


def test_sums_are_available_even_if_replays_are_longer_than_the_model():
    """Long lists of clients make replays longer than the model, but not sums."""
    start = np.zeros(2000, np.float32)
    server = Server(start, stc(1 / 100, 1 / 100))
    client = Client(0, server.terms.method, weights=start)
    many = [3 * i * i for i in range(400)]
    for t in range(60):
        server.receive(0, client.send(trained(client, t)).data)
        client.receive(server.finish_round(next_cohort=[0, *many]).data)
    assert sum(map(len, server._history.encoded_broadcasts())) > 8 * start.size
    assert mode_of(server.catch_up(1, 0).data, server) == SUM


def test_sign_counts_restart_before_they_exceed_the_limit(monkeypatch):
    monkeypatch.setattr("fedtern.core.protocol.replica.MAX_UPDATES", 5)
    server, clients = pair(METHODS["signsgd"], clients=9)
    modes = set()
    for t in range(23):
        broadcast = play_round(server, clients, [0], seed=t)
        clients[0].receive(broadcast.data)
        for away, client in enumerate(clients[1:], start=2):
            if t % away == 0:
                data = server.catch_up(client.client_id, client.round).data
                modes.add(mode_of(data, server))
                client.receive(data)
                assert client.weights.tobytes() == server.weights.tobytes()
                assert client._replica.num_sign_updates == server._replica.num_sign_updates <= 5
        new = Client(99, server.terms.method, LAYOUT)
        new.receive(server.catch_up(99, -1).data)
        assert new.weights.tobytes() == server.weights.tobytes()
    assert modes >= {SUM, REPLAY}


@every_method
@pytest.mark.parametrize("arrived", [True, False])
def test_a_catch_up_tells_whether_the_last_upload_counted(method, arrived):
    server, clients = pair(method)
    away = clients[1]
    data = away.send(trained(away, 0)).data
    residual = away.residual.copy()
    if arrived:
        server.receive(1, data)
    for t in range(6):
        play_round(server, clients, [0], seed=t)
    away.receive(server.catch_up(1, away.round).data)
    assert away.pending is None
    unchanged = np.array_equal(away.residual, residual)
    is_empty_upload = is_empty(Upload.open(data, away.terms).update)
    assert unchanged == (arrived or is_memoryless(method) or is_empty_upload)


def test_a_client_from_a_backup_is_told_to_start_again():
    server, clients = pair(METHODS["stc"])
    lost = clients[1]
    lost.send(trained(lost, 0))  # never arrives
    backup = lost.snapshot()
    play_round(server, clients, [0])
    lost.receive(server.catch_up(1, 0).data)
    server.receive(1, lost.send(trained(lost, 1)).data)  # a later one counts
    server.finish_round()
    lost.restore(backup)
    with pytest.raises(RemoteProtocolError, match="restored from an old copy of its state"):
        lost.receive(server.catch_up(1, 0).data)
    assert lost.round == 0
    new = pair(METHODS["stc"])[1][1]  # its directory was deleted
    assert new.receive(server.catch_up(1, 0).data).round == 2


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_updates_that_cannot_be_summed_follow_a_rounded_initial_model_one_by_one(precision):
    """A grid has no sum, but a few of its broadcasts are shorter than an exact model."""
    method = METHODS["grid"]
    layout = Layout(
        ("w", "b"), ((40, 50), (50,)), (Carried("mean", (3,), "float32"), Carried("n", (), "int64"))
    )
    rng = np.random.default_rng(0)
    start = rng.standard_normal(layout.size).astype(np.float32)
    carried = {"mean": np.zeros(3, np.float32), "n": np.array(0)}
    server = Server(start, method, layout, carried=carried, initial=precision)
    trainer = Client(1, method, layout, start, carried=carried, initial=precision)
    seen = set()
    for round in range(12):
        late = Client(2, method, layout)
        caught_up = server.catch_up(2, -1)
        seen.add(caught_up.how)
        assert late.receive(caught_up.data).round == round
        assert late.weights.tobytes() == server.weights.tobytes()
        assert late.stamp == server.stamp
        assert all(np.array_equal(late.carried[name], server.carried[name]) for name in carried)
        assert len(caught_up.data) < 4 * layout.size + 200
        delta = rng.standard_normal(layout.size) * 0.1
        # The counter stays at its last value in every third round.
        values = {"mean": np.full(3, round, np.float32), "n": np.array(round - round % 3)}
        server.receive(1, trainer.send_delta(delta, carried=values).data)
        data = server.finish_round().data
        trainer.receive(data)
        assert late.receive(data).round == round + 1
    assert seen == {How.START, How.MODEL}
