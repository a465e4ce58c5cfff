"""Deferred writes of a durable client, and snapshots that hand on their memory."""

from __future__ import annotations

import numpy as np
import pytest

from fedtern import Client, DurableClient, Server, Store, stc
from fedtern.core.errors import StoreError
from fedtern.core.snapshot import Snapshot
from fedtern.store.log import read_log

SIZE = 500
METHOD = stc(1 / 10, 1 / 10)


def opened(store, *, defer=True):
    return DurableClient(Client(3, METHOD, weights=np.zeros(SIZE)), store, defer=defer)


def step(server, client, seed):
    """Let a client take part in a round, and return the broadcast."""
    delta = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)
    server.receive(3, client.send_delta(delta).data)
    return server.finish_round().data


@pytest.fixture
def server():
    return Server(np.zeros(SIZE), METHOD)


def test_deferred_message_was_not_received_if_the_process_is_killed(tmp_path, server):
    with Store(tmp_path) as store:
        client = opened(store)
        broadcast = step(server, client, 0)
        client.receive(broadcast)
        assert client.round == 1
    with Store(tmp_path) as store:
        client = opened(store)
        assert client.round == 0
        assert client.pending is not None
        assert client.receive(broadcast).counted


def test_flushed_message_survives(tmp_path, server):
    with Store(tmp_path) as store:
        client = opened(store)
        client.receive(step(server, client, 0))
        client.flush()
        client.flush()  # nothing is left to write
    with Store(tmp_path) as store:
        client = opened(store)
        assert client.round == 1
        assert np.array_equal(client.weights, server.weights)


def test_next_upload_writes_deferred_messages(tmp_path, server):
    with Store(tmp_path) as store:
        client = opened(store)
        client.receive(step(server, client, 0))
        last = step(server, client, 1)
        residual = client.residual.copy()
    with Store(tmp_path) as store:
        client = opened(store)
        assert client.round == 1
        assert np.array_equal(client.residual, residual)
        client.receive(last)
        client.flush()
        assert np.array_equal(client.weights, server.weights)


def test_long_deferred_message_becomes_a_snapshot_and_not_a_log(tmp_path, server):
    with Store(tmp_path, log_bytes=50) as store:
        client = opened(store)
        client.receive(server.catch_up(3, 0).data)
        step(server, client, 0)
        server.finish_round()
        client.receive(server.catch_up(3, 0).data)
        client.flush()
        assert [read_log(path) for path in tmp_path.glob("*.log")] == [[]]
    with Store(tmp_path) as store:
        assert opened(store).round == 2


@pytest.mark.parametrize("mapped", [False, True])
def test_client_restored_from_a_store_does_not_change_the_file(tmp_path, server, mapped):
    with Store(tmp_path) as store:
        client = opened(store)
        broadcast = step(server, client, 0)
    (path,) = tmp_path.glob("*.safetensors")
    before = path.read_bytes()
    with Store(tmp_path, mapped=mapped) as store:
        client = opened(store)
        client.receive(broadcast)
        assert path.read_bytes() == before
        step(server, client, 1)
        assert not path.exists()  # replaced, while its memory may still be in use
    with Store(tmp_path, mapped=mapped) as store:
        assert opened(store).round == 1


def test_empty_snapshot_is_reported_as_damaged(tmp_path):
    with Store(tmp_path) as store:
        opened(store)
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(b"")
    with Store(tmp_path, mapped=True) as store, pytest.raises(StoreError, match="safetensors: not"):
        opened(store)


def test_restored_client_does_not_share_memory_with_the_snapshot_of_another():
    first = Client(3, METHOD, weights=np.zeros(SIZE))
    first.send_delta(np.ones(SIZE, np.float32))
    snapshot = first.snapshot()
    second = Client(3, METHOD, weights=np.zeros(SIZE))
    second.restore(snapshot)
    assert not np.shares_memory(second.weights, snapshot.arrays["weights"])
    assert not np.shares_memory(second.residual, snapshot.arrays["feedback.residual"])


def test_snapshot_in_writable_memory_hands_it_on():
    data = Snapshot({"x.a": np.arange(3, dtype=np.float32)}, {}).to_bytes()
    assert not Snapshot.from_bytes(data).is_owner
    memory = memoryview(bytearray(data))
    snapshot = Snapshot.from_bytes(memory)
    assert snapshot.is_owner
    assert np.shares_memory(snapshot.copies_with_prefix("x.")["a"], snapshot.arrays["x.a"])


def test_delta_is_overwritten_only_if_the_caller_allows_it():
    for overwrite in (False, True):
        client = Client(3, METHOD, weights=np.zeros(SIZE))
        delta = np.arange(SIZE, dtype=np.float32)
        client.send_delta(delta, overwrite=overwrite)
        assert np.array_equal(delta, np.arange(SIZE)) is not overwrite
