from __future__ import annotations

import numpy as np
import pytest

from checks import LAYOUT, METHODS, pair, trained
from fedtern import (
    Client,
    DecodeError,
    DuplicateUpload,
    LateUpload,
    Layout,
    LocalProtocolError,
    Method,
    MissedRounds,
    NonFiniteError,
    RemoteProtocolError,
    Server,
    Snapshot,
    stc,
)
from fedtern.core.codecs.golomb import encode_positions
from fedtern.core.envelope import CATCH_UP
from fedtern.core.feedback import ErrorFeedback, Memoryless, PowerIteration
from fedtern.core.protocol import Upload
from fedtern.core.protocol.catchup import MODEL, REPLAY, SUM, CatchUpBuilder, read_lag
from fedtern.core.updates import Dense, Sparse, Ternary, is_empty


def forgets(method: Method) -> bool:
    return isinstance(method.up.feedback, Memoryless)


every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@every_method
def test_a_delta_makes_the_upload_that_new_weights_make(method):
    _, (one, other, *_) = pair(method)
    other.client_id = other._uplink.client_id = one.client_id
    new = trained(one, 3)
    delta = np.asarray(new, np.float32) - one.weights
    kept = delta.copy()
    assert one.send(new).data == other.send_delta(delta).data
    assert np.array_equal(delta, kept)  # it is the caller's
    with pytest.raises(LocalProtocolError, match="has made its upload"):
        other.send_delta(delta)
    with pytest.raises(ValueError, match="delta have shape"):
        Client(9, method, one.terms.layout, one.weights).send_delta(delta[1:])


def play(server: Server, clients: list[Client], cohort: list[int], seed: int = 0):
    """One round in which nothing goes wrong."""
    for i in cohort:
        clients[i].receive(server.catch_up(i, clients[i].round).data)
        server.receive(i, clients[i].send(trained(clients[i], seed)).data, num_examples=10 + i)
    return server.finish_round()


def mode_of(data: bytes, server: Server) -> int:
    _, reader = server.terms.open(data, CATCH_UP)
    return read_lag(reader)[2]


def states(*parties: Server | Client) -> list[bytes]:
    return [party.snapshot().to_bytes() for party in parties]


@every_method
def test_replicas_are_bit_exact_at_any_lag(method):
    server, clients = pair(method, clients=5)
    for t in range(25):
        # Client 4 takes part once, at the start, and then is away.
        play(server, clients, [t % 2, 2 + t % 2] if t else [4], seed=t)
    for client in clients:
        client.receive(server.catch_up(client.client_id, client.round).data)
        assert client.weights.tobytes() == server.weights.tobytes()


@every_method
def test_a_client_without_weights_can_join(method):
    server, clients = pair(method)
    for t in range(5):
        play(server, clients, [0, 1], seed=t)
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
        play(server, clients, [0, 2], seed=t)
    late.receive(server.catch_up(77, late.round).data)
    assert late.weights.tobytes() == server.weights.tobytes()


@every_method
def test_following_broadcasts_and_catching_up_lead_to_the_same_bits(method):
    server, clients = pair(method)
    for t in range(10):
        broadcast = play(server, clients, [0], seed=t)
        assert clients[0].receive(broadcast.data).is_new
        assert clients[1].receive(broadcast.data).is_new
        assert not clients[1].receive(broadcast.data).is_new
    clients[2].receive(server.catch_up(2, 0).data)
    assert {c.weights.tobytes() for c in clients} == {server.weights.tobytes()}


@every_method
def test_every_kind_of_catch_up_leads_to_the_same_bits(method):
    """Whatever is shortest here, each of the three has to work."""
    server, clients = pair(method, clients=4)
    broadcasts = [play(server, clients, [0, 1], seed=t) for t in range(4)]
    way = CatchUpBuilder(0, server.round, False, server.terms)
    first, now = broadcasts[0].head.stamp, server._replica.stamp
    forms = [
        way.replay([b.data for b in broadcasts], first),
        way.model(server._replica.parts(), now),
    ]
    missed = server._history.since(0)  # None where a model is shorter than a replay of them
    payload = server._history.sum_of(missed, server._replica) if missed else None
    if payload is not None:
        forms.append(way.sum(payload, first, now))
    for form in forms:
        client = Client(9, method, LAYOUT, pair(method)[0].weights)
        assert client.receive(form).is_new
        assert client.weights.tobytes() == server.weights.tobytes()
    assert len(server.catch_up(9, 0).data) <= min(map(len, forms)) + 4


def test_the_cache_of_broadcasts_stays_within_its_bytes_however_often_clients_catch_up():
    start = np.zeros(2000, np.float32)
    server, large = (Server(start, stc(1 / 50, 1 / 50), cache_bytes=c) for c in (4_000, 10**6))
    client = Client(0, server.terms.method, weights=start)
    kept = []
    for t in range(60):
        client.receive(server.catch_up(0, client.round).data)
        data = client.send(trained(client, t)).data
        for each in (server, large):
            each.receive(0, data)
            each.finish_round()
            each.catch_up(1, max(server.round - 3, 0))  # what is merged for it is kept, too
        kept.append(len(server._history.data()))
    again = Server(start, server.terms.method, cache_bytes=4_000)
    again.restore(Snapshot.from_bytes(server.snapshot().to_bytes()))
    assert again._history.nbytes == server._history.nbytes <= 4_000
    assert 10 < max(kept) < 40
    # Which updates are still there in a form that can be added up changes no message.
    assert len(server._history._read) < 5
    for since in range(server.round - min(kept[-5:]), server.round):
        found = {each.catch_up(1, since).data for each in (server, large, again)}
        assert len(found) == 1


def test_what_cannot_be_added_up_is_not_read_again_to_find_that_out(monkeypatch):
    method = METHODS["ef_signsgd-both-ways"]
    server, clients = pair(method, Layout.flat(4000), clients=2)
    small = Server(server.weights, method, Layout.flat(4000), cache_bytes=20_000)
    for t in range(9):
        small.receive(0, clients[0].send(trained(clients[0], t)).data)
        clients[0].receive(small.finish_round().data)
    assert len(small._history.data()) > len(small._history._read)
    monkeypatch.setattr("fedtern.core.protocol.history.Broadcast.open", None)
    assert mode_of(small.catch_up(1, 0).data, small) == REPLAY


def test_sums_reach_as_far_as_there_are_any_whatever_broadcasts_take_besides():
    """Long lists of who took part make replays longer than the model, but no sum."""
    start = np.zeros(2000, np.float32)
    server = Server(start, stc(1 / 100, 1 / 100))
    client = Client(0, server.terms.method, weights=start)
    many = [3 * i * i for i in range(400)]
    for t in range(60):
        server.receive(0, client.send(trained(client, t)).data)
        client.receive(server.finish_round(next_cohort=[0, *many]).data)
    assert sum(map(len, server._history.data())) > 8 * start.size
    assert mode_of(server.catch_up(1, 0).data, server) == SUM


def test_signs_are_counted_from_a_new_base_before_they_are_too_many(monkeypatch):
    monkeypatch.setattr("fedtern.core.protocol.replica.MAX_UPDATES", 5)
    server, clients = pair(METHODS["signsgd"], clients=9)
    seen = set()
    for t in range(23):
        broadcast = play(server, clients, [0], seed=t)
        clients[0].receive(broadcast.data)
        for away, client in enumerate(clients[1:], start=2):
            if t % away == 0:
                data = server.catch_up(client.client_id, client.round).data
                seen.add(mode_of(data, server))
                client.receive(data)
                assert client.weights.tobytes() == server.weights.tobytes()
                assert client._replica.num_sign_updates == server._replica.num_sign_updates <= 5
        new = Client(99, server.terms.method, LAYOUT)
        new.receive(server.catch_up(99, -1).data)
        assert new.weights.tobytes() == server.weights.tobytes()
    assert seen >= {SUM, REPLAY}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache_bytes": -1}, "cache_bytes must not be negative, got -1"),
        ({"seed": -1}, "seed must not be negative, got -1"),
    ],
)
def test_a_server_refuses_what_would_fail_it_later(options, words):
    with pytest.raises(ValueError, match=words):
        Server(np.zeros(3), stc(), **options)


def test_seeds_may_be_of_any_whole_kind():
    server = Server(np.zeros(3), stc(), seed=np.int64(3))
    assert Snapshot.from_bytes(server.snapshot().to_bytes()).meta["seed"] == 3
    with pytest.raises(ValueError, match="seed must not be negative"):
        Client(0, stc(), weights=np.zeros(3), seed=-1)


def test_each_kind_of_catch_up_is_the_shortest_somewhere():
    layout = Layout.flat(400)
    kinds = {}
    for name, lag in (("sgd", 1), ("sgd", 3), ("stc", 6), ("signsgd", 6), ("signsgd", 1)):
        server, clients = pair(METHODS[name], layout, clients=2)
        for t in range(lag):
            play(server, clients, [0], seed=t)
        kinds[name, lag] = mode_of(server.catch_up(1, 0).data, server)
    assert kinds == {
        ("sgd", 1): MODEL,  # the model: as long as a dense update, without its acknowledgements
        ("sgd", 3): MODEL,
        ("stc", 6): SUM,  # the sum: one envelope in place of six
        ("signsgd", 6): SUM,  # three bits a parameter in place of six
        ("signsgd", 1): SUM,
    }
    server, clients = pair(METHODS["topk"], Layout.flat(4000), clients=2)
    play(server, clients, [0])
    assert mode_of(server.catch_up(1, 1).data, server) == REPLAY  # nothing missed: an empty one


def test_the_sum_of_signs_takes_at_most_log2_of_2s_plus_1_bits_a_parameter():
    layout = Layout.flat(10_000)
    server, clients = pair(METHODS["signsgd"], layout, clients=2)
    for t in range(16):
        play(server, clients, [0], seed=t)
        lag = t + 1
        payload = 8 * (len(server.catch_up(1, 0).data) - 32)
        assert payload <= layout.size * np.log2(2 * lag + 1)


@every_method
def test_an_upload_that_did_not_count_goes_back_into_the_residual(method):
    server, clients = pair(method)
    lost = clients[1]
    produced = trained(lost, 0) - lost.weights
    upload = Upload.open(lost.send(trained(lost, 0)).data, lost.terms)  # never arrives
    left = lost.residual.copy()
    broadcast = play(server, clients, [0])
    assert broadcast.counted == {0}
    lost.receive(broadcast.data)
    assert lost.pending is None
    if forgets(method):  # by design
        assert not lost.residual.any()
    else:
        assert np.allclose(lost.residual, left + upload.update.to_dense(), atol=1e-6)
    if isinstance(method.up.feedback, ErrorFeedback | PowerIteration):  # and nothing but adds up
        assert np.allclose(lost.residual, produced, atol=1e-6)


@every_method
@pytest.mark.parametrize("arrived", [True, False])
def test_a_client_that_was_away_learns_whether_its_last_upload_counted(method, arrived):
    server, clients = pair(method)
    away = clients[1]
    data = away.send(trained(away, 0)).data
    residual = away.residual.copy()
    if arrived:
        server.receive(1, data)
    for t in range(6):
        play(server, clients, [0], seed=t)
    away.receive(server.catch_up(1, away.round).data)
    assert away.pending is None
    kept = np.array_equal(away.residual, residual)
    assert kept == (arrived or forgets(method) or is_empty(Upload.open(data, away.terms).update))


def test_late_duplicate_and_foreign_uploads_are_refused_without_harm():
    server, clients = pair(METHODS["stc"])
    other = Server(server.weights, METHODS["stc"], LAYOUT, federation="other")
    early = clients[0].send(trained(clients[0], 0)).data
    server.receive(0, early)
    clients[1].send(trained(clients[1], 0))
    late = clients[1].pending
    before = states(server)
    with pytest.raises(DuplicateUpload, match="client 0: this upload of round 0 has already"):
        server.receive(0, early)
    with pytest.raises(
        RemoteProtocolError, match="client 0: another upload of round 0"
    ) as other_one:
        server.receive(0, clients[2].send(trained(clients[2], 5)).data)
    assert not isinstance(other_one.value, DuplicateUpload)  # which a network makes by itself
    with pytest.raises(RemoteProtocolError, match=r"client 3: the message's history at round 0"):
        other.receive(3, early)
    assert states(server) == before
    server.finish_round(next_cohort=[1, 2])
    before = states(server)
    with pytest.raises(LateUpload, match="client 1: upload is for round 0, the server is at 1"):
        server.receive(1, late)
    clients[0].receive(server.catch_up(0, 0).data)
    with pytest.raises(RemoteProtocolError, match="client 0: not in the cohort of round 1"):
        server.receive(0, clients[0].send(trained(clients[0], 1)).data)
    assert states(server) == before


def test_a_round_from_the_future_is_refused_with_both_rounds():
    server, clients = pair(METHODS["stc"])
    ahead, _ = pair(METHODS["stc"])
    clients[0].receive(ahead.finish_round().data)
    with pytest.raises(RemoteProtocolError, match=r"client 0: upload is for round 1, .* at 0"):
        server.receive(0, clients[0].send(trained(clients[0], 0)).data)
    with pytest.raises(RemoteProtocolError, match="catch up from round 1, the server is at 0"):
        server.catch_up(0, 1)


def test_another_method_or_layout_is_refused_with_both_sides_named():
    server, clients = pair(METHODS["stc"])
    stranger = Client(5, METHODS["topk"], LAYOUT, server.weights)
    with pytest.raises(RemoteProtocolError, match=r"client 5: the peer's method is \w{6}, ours is"):
        server.receive(5, stranger.send(trained(stranger, 0)).data)
    reshaped = Client(6, METHODS["stc"], Layout.flat(LAYOUT.size), server.weights)
    with pytest.raises(RemoteProtocolError, match=r"peer's layout is .*\(3 tensors, 43 parameters"):
        server.receive(6, reshaped.send(trained(reshaped, 0)).data)
    with pytest.raises(RemoteProtocolError, match="the peer's method is"):
        stranger.receive(server.finish_round().data)
    with pytest.raises(DecodeError, match="expected a message of kind"):
        clients[0].receive(clients[1].send(trained(clients[1], 0)).data)


@every_method
def test_damaged_messages_change_nothing(method):
    server, clients = pair(method)
    data = clients[0].send(trained(clients[0], 0)).data
    broadcast = play(server, clients, [1]).data
    catch_up = server.catch_up(2, 0).data
    server, _ = pair(method)
    before = states(server, clients[2])
    for message in (data, broadcast, catch_up):
        for at in range(len(message)):
            flipped = bytearray(message)
            flipped[at] ^= 0x10
            with pytest.raises(RemoteProtocolError, match="client 0:"):
                server.receive(0, bytes(flipped))
            with pytest.raises((DecodeError, RemoteProtocolError)):
                clients[2].receive(bytes(flipped))
    assert states(server, clients[2]) == before


def test_a_foreign_version_is_named():
    server, clients = pair(METHODS["stc"])
    data = bytearray(clients[0].send(trained(clients[0], 0)).data)
    data[1] = 0x91
    with pytest.raises(RemoteProtocolError, match="format version 9, this reader knows 1"):
        server.receive(0, bytes(data))


@every_method
def test_an_update_that_is_not_finite_is_refused_and_nothing_changes(method):
    _, clients = pair(method)
    before = states(clients[0])
    new = trained(clients[0], 0)
    new[27] = np.nan
    with pytest.raises(NonFiniteError, match=r"nan at bias\[3\]"):
        clients[0].send(new)
    assert states(clients[0]) == before


def test_calls_out_of_order_are_refused():
    server, clients = pair(METHODS["stc"])
    clients[0].send(trained(clients[0], 0))
    with pytest.raises(LocalProtocolError, match="client 0 has made its upload of round 0"):
        clients[0].send(trained(clients[0], 0))
    with pytest.raises(LocalProtocolError, match="client 4 has no upload in round 0"):
        server.discard(4)
    with pytest.raises(ValueError, match="Give the layout or the initial weights"):
        Client(0, METHODS["stc"])
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(43,\)"):
        clients[1].send([1, 2, 3])
    with pytest.raises(ValueError, match=r"weights must be a flat vector of 43 values, got shape"):
        Server(np.zeros(5), METHODS["stc"], LAYOUT)
    with pytest.raises(ValueError, match=r"client_id must be in \[0, 2\*\*64\), got -1"):
        server.receive(-1, b"")
    with pytest.raises(RemoteProtocolError, match="claims 0 examples"):
        server.receive(0, clients[0].pending, num_examples=0)


def test_a_discarded_upload_is_returned_to_its_client():
    server, clients = pair(METHODS["stc"])
    delta = trained(clients[1], 0) - clients[1].weights
    for client in clients[:2]:
        server.receive(client.client_id, client.send(trained(client, 0)).data)
    server.discard(1)
    assert server.uploaded == {0}
    clients[1].receive(server.finish_round().data)
    assert np.allclose(clients[1].residual, delta, atol=1e-6)


@every_method
def test_a_round_without_uploads_changes_only_its_number_and_cohort(method):
    server, clients = pair(method)
    play(server, clients, [0, 1])
    weights, residual = server.weights.copy(), server.residual.copy()
    broadcast = server.finish_round(next_cohort=[2])
    assert server.weights.tobytes() == weights.tobytes()
    assert server.residual.tobytes() == residual.tobytes()
    assert (server.round, server.cohort, broadcast.counted) == (2, {2}, set())
    play(server, clients, [2])
    clients[0].receive(server.catch_up(0, 0).data)
    assert clients[0].weights.tobytes() == server.weights.tobytes()


def test_the_order_of_arrival_does_not_matter():
    results = set()
    for order in ([0, 1, 2], [2, 0, 1]):
        server, clients = pair(METHODS["stc"])
        for i in order:
            server.receive(i, clients[i].send(trained(clients[i], 0)).data, num_examples=i + 1)
        results.add(server.finish_round().data)
    assert len(results) == 1


def test_the_cache_is_bounded_in_bytes_and_only_costs_longer_downloads():
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


@every_method
def test_a_restored_pair_goes_on_to_the_same_bytes(method):
    server, clients = pair(method)
    for t in range(4):
        play(server, clients, [t % 3], seed=t)
    clients[0].receive(server.catch_up(0, clients[0].round).data)
    server.finish_round(next_cohort=[0, 1, 2])
    clients[0].receive(server.catch_up(0, clients[0].round).data)
    server.receive(0, clients[0].send(trained(clients[0], 9)).data, num_examples=3)
    server2, clients2 = pair(method)
    for old, new in zip([server, *clients], [server2, *clients2], strict=True):
        new.restore(Snapshot.from_bytes(old.snapshot().to_bytes()))
    assert server2.cohort == server.cohort == {0, 1, 2}
    assert server2.finish_round().data == server.finish_round().data
    for t in range(5, 9):
        a, b = play(server, clients, [t % 3], seed=t), play(server2, clients2, [t % 3], seed=t)
        assert a.data == b.data
        assert server.catch_up(1, 2).data == server2.catch_up(1, 2).data
    assert states(server, *clients) == states(server2, *clients2)


def test_a_snapshot_of_something_else_is_refused_with_both_values():
    server, clients = pair(METHODS["stc"])
    with pytest.raises(ValueError, match="snapshot's kind is 'client', expected 'server'"):
        server.restore(clients[0].snapshot())
    with pytest.raises(ValueError, match="snapshot's federation is '', expected 'other'"):
        Server(server.weights, METHODS["stc"], LAYOUT, federation="other").restore(
            server.snapshot()
        )
    with pytest.raises(ValueError, match="snapshot's client is 1, expected 0"):
        clients[0].restore(clients[1].snapshot())
    with pytest.raises(ValueError, match=r"snapshot's method is .*'stc'.*, expected .*'topk'"):
        Server(server.weights, METHODS["topk"], LAYOUT).restore(server.snapshot())


def test_a_hostile_magnitude_cannot_stall_the_server_for_good():
    """Uploads of the largest value a message can carry, every round, from half the cohort."""
    server, clients = pair(METHODS["stc"])
    update = Ternary(43, np.arange(43), np.ones(43, bool), np.float32([2.0**64]))
    for t in range(40):
        payload = METHODS["stc"].up.codec.encode(update, LAYOUT)
        server.receive(8, Upload.seal(server._replica.stamp, t, payload, server.terms))
        client = clients[0]
        client.receive(server.catch_up(0, client.round).data)
        server.receive(0, client.send(trained(client, t)).data)
        server.finish_round()
    late = Client(50, METHODS["stc"], LAYOUT)
    assert late.receive(server.catch_up(50, -1).data).is_new


def test_an_upload_beyond_its_limit_is_refused_on_both_sides():
    server, clients = pair(METHODS["topk"])
    new = clients[0].weights.copy()
    new[3] = 2.0**65
    with pytest.raises(NonFiniteError, match=r"magnitude .* cannot be sent, the limit is 2\*\*64"):
        clients[0].send(new)
    payload = METHODS["topk"].up.codec.encode(
        Sparse(43, np.array([3]), np.float32([2.0**65])), LAYOUT
    )
    with pytest.raises(RemoteProtocolError, match=r"client 0: an upload's values end at 2\*\*64"):
        server.receive(0, Upload.seal(server._replica.stamp, 0, payload, server.terms))


def test_a_value_that_is_not_finite_is_named_with_its_tensor():
    server, _ = pair(METHODS["sgd"])
    values = np.zeros(43, np.float32)
    values[26] = np.nan
    payload = METHODS["sgd"].up.codec.encode(Dense(values), LAYOUT)
    with pytest.raises(
        RemoteProtocolError, match=r"client 4: value nan at bias\[2\] is not finite"
    ):
        server.receive(4, Upload.seal(server._replica.stamp, 0, payload, server.terms))


def test_histories_that_have_parted_are_noticed():
    """A server that went back to an old state, and a client that began with other weights."""
    server, clients = pair(METHODS["stc"])
    backup = Snapshot.from_bytes(server.snapshot().to_bytes())
    broadcast = play(server, clients, [0])
    for client in clients[:2]:
        client.receive(broadcast.data)
    server.restore(backup)
    play(server, [*clients[:2], pair(METHODS["stc"])[1][2]], [2], seed=5)
    for message in (play(server, [clients[2]] * 3, [2], seed=6).data, server.catch_up(1, 1).data):
        with pytest.raises(RemoteProtocolError, match="the message's history at round"):
            clients[1].receive(message)
    with pytest.raises(RemoteProtocolError, match="client 0: upload is for round 1"):
        server.receive(0, clients[0].send(trained(clients[0], 7)).data)
    stranger = Client(5, METHODS["stc"], LAYOUT, server.weights + 1)
    with pytest.raises(RemoteProtocolError, match="the message's history at round 0"):
        stranger.receive(pair(METHODS["stc"])[0].finish_round().data)
    again = Client(1, METHODS["stc"], LAYOUT)
    again.receive(server.catch_up(1, -1).data)
    assert again.weights.tobytes() == server.weights.tobytes()


@every_method
def test_a_snapshot_is_a_value(method):
    server, clients = pair(method)
    play(server, clients, [0, 1])
    taken = [party.snapshot() for party in (server, clients[2])]
    before = [snapshot.to_bytes() for snapshot in taken]
    broadcast = play(server, clients, [0])
    clients[2].receive(server.catch_up(2, 0).data)
    assert [snapshot.to_bytes() for snapshot in taken] == before
    clients[2].restore(taken[1])
    clients[2].receive(server.catch_up(2, 0).data)
    assert clients[2].weights.tobytes() == server.weights.tobytes()
    assert broadcast.round == 1


def test_ids_may_be_numpys():
    server, _ = pair(METHODS["stc"])
    client = Client(np.int64(3), METHODS["stc"], LAYOUT, server.weights)
    server.receive(np.uint64(3), client.send(trained(client, 0)).data, num_examples=np.int64(5))
    server.finish_round(next_cohort=np.array([3, 4], np.uint64))
    assert Snapshot.from_bytes(server.snapshot().to_bytes()).meta["cohort"] == [3, 4]
    assert Snapshot.from_bytes(client.snapshot().to_bytes()).meta["client"] == 3
    other = pair(METHODS["stc"])[0]
    with pytest.raises(TypeError):
        other.receive(3, client.pending, num_examples=2.5)


def test_a_client_from_an_old_backup_is_told_what_became_of_its_upload():
    server, clients = pair(METHODS["stc"])
    lost = clients[1]
    lost.send(trained(lost, 0))  # never arrives
    backup = lost.snapshot()
    residual = lost.residual.copy()
    play(server, clients, [0])
    lost.receive(server.catch_up(1, 0).data)
    server.receive(1, lost.send(trained(lost, 1)).data)  # a later one counts
    server.finish_round()
    lost.restore(backup)
    lost.receive(server.catch_up(1, 0).data)
    assert not np.array_equal(lost.residual, residual)


def test_weights_can_be_read_but_not_written():
    server, clients = pair(METHODS["stc"])
    for party in (server, clients[0]):
        with pytest.raises(ValueError, match="read-only"):
            party.weights[0] = 1
        with pytest.raises(ValueError, match="read-only"):
            party.residual[0] = 1


@pytest.mark.parametrize(("scope", "tensors"), [("model", 1), ("tensor", 40)])
def test_framing_is_at_most_24_bytes_a_message_and_6_a_tensor(scope, tensors):
    names = tuple(f"t{i}" for i in range(40))
    layout = Layout(names, tuple((i % 7 + 1, 5 * i + 1) for i in range(40)))
    method = stc(p_up=0.05, p_down=0.05, scope=scope)
    server = Server(np.zeros(layout.size), method, layout)
    client = Client(3, method, layout, server.weights)
    data = client.send(np.random.default_rng(0).standard_normal(layout.size)).data
    server.receive(3, data)
    broadcast = server.finish_round()
    acknowledged = 1  # client 3, in one byte
    upload = Upload.open(data, server.terms)
    for size, update in (
        (len(data), upload.update),
        (len(broadcast.data) - acknowledged, broadcast.update),
    ):
        signs = (update.indices.size + 7) // 8
        content = signs + len(encode_positions(update.indices, layout.size))
        assert size - content <= 24 + 6 * tensors
