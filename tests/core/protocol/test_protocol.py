"""Uploads, broadcasts, refusals and snapshots of servers and clients."""

from __future__ import annotations

import numpy as np
import pytest

from checks import LAYOUT, METHODS, is_memoryless, pair, play_round, trained
from fedtern import (
    Client,
    DecodeError,
    DuplicateUpload,
    LateUpload,
    Layout,
    LocalProtocolError,
    NonFiniteError,
    RemoteProtocolError,
    Server,
    Snapshot,
    stc,
)
from fedtern.core.codecs.golomb import encode_positions
from fedtern.core.feedback import ErrorFeedback, PowerIteration
from fedtern.core.protocol import NormCap, Upload
from fedtern.core.updates import Dense, Sparse, Ternary

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def states(*parties: Server | Client) -> list[bytes]:
    return [party.snapshot().to_bytes() for party in parties]


@every_method
def test_a_delta_gives_the_same_upload_as_new_weights(method):
    _, (one, *_) = pair(method)
    other = Client(one.client_id, method, LAYOUT, one.weights)
    new = trained(one, 3)
    delta = np.asarray(new, np.float32) - one.weights
    delta_before = delta.copy()
    assert one.send(new).data == other.send_delta(delta).data
    assert np.array_equal(delta, delta_before)  # the caller's array is not changed
    with pytest.raises(LocalProtocolError, match="has already made its upload"):
        other.send_delta(delta)
    with pytest.raises(ValueError, match="delta must have shape"):
        Client(9, method, one.terms.layout, one.weights).send_delta(delta[1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_bytes": -1}, "cache_bytes must not be negative, got -1"),
        ({"seed": -1}, "seed must not be negative, got -1"),
    ],
)
def test_servers_refuse_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        Server(np.zeros(3), stc(), **options)


def test_seeds_can_be_numpy_integers():
    server = Server(np.zeros(3), stc(), seed=np.int64(3))
    assert Snapshot.from_bytes(server.snapshot().to_bytes()).meta["seed"] == 3
    with pytest.raises(ValueError, match="seed must not be negative"):
        Client(0, stc(), weights=np.zeros(3), seed=-1)


@every_method
def test_an_upload_that_did_not_count_is_added_to_the_residual(method):
    server, clients = pair(method)
    lost = clients[1]
    produced = trained(lost, 0) - lost.weights
    upload = Upload.open(lost.send(trained(lost, 0)).data, lost.terms)  # never arrives
    left = lost.residual.copy()
    broadcast = play_round(server, clients, [0])
    assert broadcast.counted == {0}
    lost.receive(broadcast.data)
    assert lost.pending is None
    if is_memoryless(method):
        assert not lost.residual.any()
    else:
        assert np.allclose(lost.residual, left + upload.update.to_dense(), atol=1e-6)
    if isinstance(method.up.feedback, ErrorFeedback | PowerIteration):  # plain sums of deltas
        assert np.allclose(lost.residual, produced, atol=1e-6)


def test_late_duplicate_and_foreign_uploads_are_refused_without_side_effects():
    server, clients = pair(METHODS["stc"])
    other = Server(server.weights, METHODS["stc"], LAYOUT, federation="other")
    early = clients[0].send(trained(clients[0], 0)).data
    server.receive(0, early)
    clients[1].send(trained(clients[1], 0))
    late = clients[1].pending
    before = states(server)
    with pytest.raises(DuplicateUpload, match="client 0: this upload of round 0 has already"):
        server.receive(0, early)
    with pytest.raises(RemoteProtocolError, match="client 0: another upload of round 0") as error:
        server.receive(0, clients[2].send(trained(clients[2], 5)).data)
    assert not isinstance(error.value, DuplicateUpload)  # a network can duplicate an upload
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


def test_errors_about_future_rounds_name_both_rounds():
    server, clients = pair(METHODS["stc"])
    ahead, _ = pair(METHODS["stc"])
    clients[0].receive(ahead.finish_round().data)
    with pytest.raises(RemoteProtocolError, match=r"client 0: upload is for round 1, .* at 0"):
        server.receive(0, clients[0].send(trained(clients[0], 0)).data)
    with pytest.raises(RemoteProtocolError, match="catch up from round 1, the server is at 0"):
        server.catch_up(0, 1)


def test_messages_with_another_method_or_layout_are_refused():
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
    broadcast = play_round(server, clients, [1]).data
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


def test_errors_about_the_format_version_name_both_versions():
    server, clients = pair(METHODS["stc"])
    data = bytearray(clients[0].send(trained(clients[0], 0)).data)
    data[1] = 0x91
    with pytest.raises(RemoteProtocolError, match="format version 9, this reader knows 1"):
        server.receive(0, bytes(data))


@every_method
def test_updates_that_are_not_finite_are_refused_without_side_effects(method):
    _, clients = pair(method)
    before = states(clients[0])
    new = trained(clients[0], 0)
    new[27] = np.nan
    with pytest.raises(NonFiniteError, match=r"nan at bias\[3\]"):
        clients[0].send(new)
    assert states(clients[0]) == before


def test_invalid_calls_are_refused():
    server, clients = pair(METHODS["stc"])
    clients[0].send(trained(clients[0], 0))
    with pytest.raises(LocalProtocolError, match="client 0 has already made its upload of round 0"):
        clients[0].send(trained(clients[0], 0))
    with pytest.raises(LocalProtocolError, match="client 4 has no upload in round 0"):
        server.discard(4)
    with pytest.raises(ValueError, match="Pass the layout or the initial weights"):
        Client(0, METHODS["stc"])
    with pytest.raises(ValueError, match=r"new_weights must have shape \(43,\), got \(3,\)"):
        clients[1].send([1, 2, 3])
    with pytest.raises(ValueError, match=r"weights must be a flat vector of 43 values, got shape"):
        Server(np.zeros(5), METHODS["stc"], LAYOUT)
    with pytest.raises(ValueError, match=r"client_id must be in \[0, 2\*\*64\), got -1"):
        server.receive(-1, b"")
    with pytest.raises(RemoteProtocolError, match="claims 0 examples"):
        server.receive(0, clients[0].pending, num_examples=0)


def test_a_discarded_upload_is_added_to_the_residual_of_its_client():
    server, clients = pair(METHODS["stc"])
    delta = trained(clients[1], 0) - clients[1].weights
    for client in clients[:2]:
        server.receive(client.client_id, client.send(trained(client, 0)).data)
    server.discard(1)
    assert server.uploaded == {0}
    clients[1].receive(server.finish_round().data)
    assert np.allclose(clients[1].residual, delta, atol=1e-6)


@every_method
def test_a_round_without_uploads_changes_only_round_and_cohort(method):
    server, clients = pair(method)
    play_round(server, clients, [0, 1])
    weights = server.weights.copy()
    residual = server.residual.copy()
    broadcast = server.finish_round(next_cohort=[2])
    assert server.weights.tobytes() == weights.tobytes()
    assert server.residual.tobytes() == residual.tobytes()
    assert (server.round, server.cohort, broadcast.counted) == (2, {2}, set())
    play_round(server, clients, [2])
    clients[0].receive(server.catch_up(0, 0).data)
    assert clients[0].weights.tobytes() == server.weights.tobytes()


def test_the_broadcast_does_not_depend_on_the_order_of_arrival():
    results = set()
    for order in ([0, 1, 2], [2, 0, 1]):
        server, clients = pair(METHODS["stc"])
        for i in order:
            server.receive(i, clients[i].send(trained(clients[i], 0)).data, num_examples=i + 1)
        results.add(server.finish_round().data)
    assert len(results) == 1


@every_method
def test_a_restored_federation_sends_the_same_bytes(method):
    server, clients = pair(method)
    for t in range(4):
        play_round(server, clients, [t % 3], seed=t)
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
        broadcast = play_round(server, clients, [t % 3], seed=t)
        assert play_round(server2, clients2, [t % 3], seed=t).data == broadcast.data
        assert server.catch_up(1, 2).data == server2.catch_up(1, 2).data
    assert states(server, *clients) == states(server2, *clients2)


def test_snapshots_of_another_federation_are_refused_with_both_values():
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


@pytest.mark.parametrize("cap", [None, NormCap()], ids=["no cap", "default"])
def test_uploads_of_the_largest_magnitude_cannot_block_the_server(cap):
    """Half of the cohort uploads the largest possible value in every round."""
    server, clients = pair(METHODS["stc"])
    server.cap = cap
    update = Ternary(43, np.arange(4), np.ones(4, bool), np.float32([2.0**64]))
    for t in range(40):
        payload = METHODS["stc"].up.codec.encode(update, LAYOUT)
        server.receive(8, Upload.seal(server._replica.stamp, t, payload, server.terms))
        client = clients[0]
        client.receive(server.catch_up(0, client.round).data)
        server.receive(0, client.send(trained(client, t)).data)
        server.finish_round()
    late = Client(50, METHODS["stc"], LAYOUT)
    assert late.receive(server.catch_up(50, -1).data).is_new


def test_uploads_beyond_the_largest_magnitude_are_refused_on_both_sides():
    server, clients = pair(METHODS["topk"])
    new = clients[0].weights.copy()
    new[3] = 2.0**65
    with pytest.raises(NonFiniteError, match=r"magnitude .* cannot be sent, the limit is 2\*\*64"):
        clients[0].send(new)
    payload = METHODS["topk"].up.codec.encode(
        Sparse(43, np.array([3]), np.float32([2.0**65])), LAYOUT
    )
    with pytest.raises(
        RemoteProtocolError, match=r"client 0: the largest value of an upload is 2\*\*64"
    ):
        server.receive(0, Upload.seal(server._replica.stamp, 0, payload, server.terms))


def test_uploads_with_values_that_are_not_finite_are_refused_by_tensor_name():
    server, _ = pair(METHODS["sgd"])
    values = np.zeros(43, np.float32)
    values[26] = np.nan
    payload = METHODS["sgd"].up.codec.encode(Dense(values), LAYOUT)
    with pytest.raises(
        RemoteProtocolError, match=r"client 4: value nan at bias\[2\] is not finite"
    ):
        server.receive(4, Upload.seal(server._replica.stamp, 0, payload, server.terms))


def test_messages_of_another_history_are_refused():
    """A server was restored from an old state, and a client started from other weights."""
    server, clients = pair(METHODS["stc"])
    backup = Snapshot.from_bytes(server.snapshot().to_bytes())
    broadcast = play_round(server, clients, [0])
    for client in clients[:2]:
        client.receive(broadcast.data)
    server.restore(backup)
    play_round(server, [*clients[:2], pair(METHODS["stc"])[1][2]], [2], seed=5)
    broadcast = play_round(server, [clients[2]] * 3, [2], seed=6)
    for message in (broadcast.data, server.catch_up(1, 1).data):
        with pytest.raises(RemoteProtocolError, match="the message's history at round"):
            clients[1].receive(message)
    with pytest.raises(RemoteProtocolError, match="client 0: upload is for round 1"):
        server.receive(0, clients[0].send(trained(clients[0], 7)).data)
    stranger = Client(5, METHODS["stc"], LAYOUT, server.weights + 1)
    with pytest.raises(RemoteProtocolError, match="the message's history at round 0"):
        stranger.receive(pair(METHODS["stc"])[0].finish_round().data)
    joined_again = Client(1, METHODS["stc"], LAYOUT)
    joined_again.receive(server.catch_up(1, -1).data)
    assert joined_again.weights.tobytes() == server.weights.tobytes()


@every_method
def test_a_snapshot_does_not_change_after_it_was_taken(method):
    server, clients = pair(method)
    play_round(server, clients, [0, 1])
    taken = [party.snapshot() for party in (server, clients[2])]
    before = [snapshot.to_bytes() for snapshot in taken]
    broadcast = play_round(server, clients, [0])
    clients[2].receive(server.catch_up(2, 0).data)
    assert [snapshot.to_bytes() for snapshot in taken] == before
    clients[2].restore(taken[1])
    clients[2].receive(server.catch_up(2, 0).data)
    assert clients[2].weights.tobytes() == server.weights.tobytes()
    assert broadcast.round == 1


def test_client_ids_can_be_numpy_integers():
    server, _ = pair(METHODS["stc"])
    client = Client(np.int64(3), METHODS["stc"], LAYOUT, server.weights)
    server.receive(np.uint64(3), client.send(trained(client, 0)).data, num_examples=np.int64(5))
    server.finish_round(next_cohort=np.array([3, 4], np.uint64))
    assert Snapshot.from_bytes(server.snapshot().to_bytes()).meta["cohort"] == [3, 4]
    assert Snapshot.from_bytes(client.snapshot().to_bytes()).meta["client"] == 3
    with pytest.raises(TypeError):
        pair(METHODS["stc"])[0].receive(3, client.pending, num_examples=["5", "examples"])


def test_weights_and_residuals_are_read_only():
    server, clients = pair(METHODS["stc"])
    for party in (server, clients[0]):
        with pytest.raises(ValueError, match="read-only"):
            party.weights[0] = 1
        with pytest.raises(ValueError, match="read-only"):
            party.residual[0] = 1


@pytest.mark.parametrize(("scope", "tensors"), [("model", 1), ("tensor", 40)])
def test_overhead_is_at_most_24_bytes_per_message_and_6_per_tensor(scope, tensors):
    names = tuple(f"t{i}" for i in range(40))
    layout = Layout(names, tuple((i % 7 + 1, 5 * i + 1) for i in range(40)))
    method = stc(p_up=0.05, p_down=0.05, scope=scope)
    server = Server(np.zeros(layout.size), method, layout)
    client = Client(3, method, layout, server.weights)
    data = client.send(np.random.default_rng(0).standard_normal(layout.size)).data
    server.receive(3, data)
    broadcast = server.finish_round()
    acknowledgement = 1  # the id of client 3 takes one byte
    upload = Upload.open(data, server.terms)
    for size, update in (
        (len(data), upload.update),
        (len(broadcast.data) - acknowledgement, broadcast.update),
    ):
        signs = (update.indices.size + 7) // 8
        content = signs + len(encode_positions(update.indices, layout.size))
        assert size - content <= 24 + 6 * tensors


def test_restored_vectors_are_aligned():
    """The kernels read them as floats."""
    server, clients = pair(METHODS["stc"], clients=1)
    play_round(server, clients, [0], seed=0)
    data = server.snapshot().to_bytes()
    restored = Snapshot.from_bytes(memoryview(bytearray(data)))
    assert all(array.flags.aligned for array in restored.arrays.values())
    server.restore(restored)
    assert server.residual.flags.aligned


def test_numbers_of_examples_beyond_floats_are_refused():
    server, clients = pair(METHODS["stc"], clients=1)
    upload = clients[0].send(trained(clients[0], 0)).data
    with pytest.raises(RemoteProtocolError, match="expected more than 0 and less"):
        server.receive(0, upload, 10**400)
