"""Catch-ups name their addressee; rolled-back servers and clients are noticed by the other side."""

from __future__ import annotations

import numpy as np
import pytest

from checks import METHODS
from fedtern import (
    Client,
    DecodeError,
    DurableServer,
    LocalProtocolError,
    RemoteProtocolError,
    Server,
    Snapshot,
    Store,
)
from fedtern.core.errors import MisdeliveredMessage
from fedtern.core.inspection import inspect
from fedtern.core.protocol import Broadcast, CohortNotice, How
from fedtern.core.protocol.terms import MAX_ROUND

SIZE = 200
START = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
NAMES = ("stc", "stc-powers", "signsgd", "sgd")
every_method = pytest.mark.parametrize("name", NAMES)


def new_server(name: str, **options) -> Server:
    return Server(START, METHODS[name], **options)


def new_client(i: int, name: str) -> Client:
    return Client(i, METHODS[name], weights=START)


def play(server: Server, client: Client, seed: int) -> None:
    """Let a client take part in a round."""
    client.receive(server.catch_up(client.client_id, client.round).data)
    rng = np.random.default_rng(seed)
    data = client.send_delta(rng.standard_normal(SIZE).astype(np.float32)).data
    server.receive(client.client_id, data)
    server.finish_round()


def copy_of(party):
    return Snapshot.from_bytes(party.snapshot().to_bytes())


@every_method
@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
def test_any_client_without_weights_reads_a_first_download(name, durable, tmp_path):
    server = new_server(name)
    sender = new_client(0, name)
    for seed in range(3):
        play(server, sender, seed)
    if durable:
        with Store(tmp_path / "store") as store:
            message = DurableServer(server, store).first_download()
    else:
        message = server.first_download()
    assert (message.since, message.round) == (-1, 3)
    for client_id in (5, 6):
        newcomer = Client(client_id, METHODS[name], layout=server.terms.layout)
        newcomer.receive(message.data)
        assert newcomer.weights.tobytes() == server.weights.tobytes()
        assert newcomer.stamp == server.stamp


@every_method
@pytest.mark.parametrize("cache_bytes", [0, None])
@pytest.mark.parametrize("since", [-1, 0, 3, 5])
def test_a_misdelivered_catch_up_is_refused_and_changes_nothing(name, cache_bytes, since):
    server = new_server(name, cache_bytes=cache_bytes)
    sender = new_client(0, name)
    other = new_client(8, name)
    for seed in range(5):
        if seed <= since - 1:
            other.receive(server.catch_up(8, other.round).data)
        play(server, sender, seed)
    if since < 0:
        other = Client(8, METHODS[name], other.terms.layout)
    while 0 <= other.round < since:
        other.receive(server.catch_up(8, other.round).data)
    since = other.round
    before = other.snapshot().to_bytes()
    with pytest.raises(MisdeliveredMessage, match="for client 7, this is client 8"):
        other.receive(server.catch_up(7, since).data)
    assert other.snapshot().to_bytes() == before
    assert other.receive(server.catch_up(8, since).data).round == server.round
    assert other.weights.tobytes() == server.weights.tobytes()
    assert inspect(server.catch_up(7, since).data).facts["addressee"] == "7"


@every_method
@pytest.mark.parametrize("cache_bytes", [0, None])
def test_a_client_notices_a_server_that_was_restored_from_a_backup(name, cache_bytes):
    server = new_server(name, cache_bytes=cache_bytes)
    away, sender, watcher = (new_client(i, name) for i in range(3))
    for seed in range(4):
        play(server, sender, seed)
    backup = copy_of(server)
    sender_backup = copy_of(sender)
    for seed in range(4, 8):
        play(server, sender, seed)
    away.receive(server.catch_up(0, 0).data)
    watcher.receive(server.catch_up(2, 0).data)
    restored = new_server(name, cache_bytes=cache_bytes)
    restored.restore(backup)
    with pytest.raises(
        RemoteProtocolError, match=r"the server is at 4; if the server was restored"
    ):
        restored.catch_up(0, away.round)
    sender.restore(sender_backup)
    for seed in range(14, 18):  # other rounds than those that were lost
        play(restored, sender, seed)
    assert restored.round == away.round
    with pytest.raises(RemoteProtocolError, match="restored from an old state"):
        away.receive(restored.catch_up(0, away.round).data)  # missed nothing, it seems
    for seed in range(18, 22):
        play(restored, sender, seed)
    found = restored.catch_up(0, away.round)
    assert cache_bytes is None or found.how is How.MODEL
    before = away.snapshot().to_bytes()
    with pytest.raises(RemoteProtocolError, match=r"history at round 8 is .* client 0 has"):
        away.receive(found.data)
    assert away.snapshot().to_bytes() == before
    new = Client(0, METHODS[name], away.terms.layout)
    assert new.receive(restored.catch_up(0, -1).data).round == restored.round


@pytest.mark.parametrize("name", ["stc", "stc-powers"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_client_that_was_restored_from_a_backup_is_noticed(name, at):
    server = new_server(name, cache_bytes=0)
    client = new_client(1, name)
    for seed in range(at):
        play(server, client, seed)
    client.receive(server.catch_up(1, client.round).data)
    server.receive(1, client.send_delta(np.ones(SIZE, np.float32)).data)
    backup = copy_of(client)
    server.finish_round()
    for seed in range(3):
        play(server, client, seed)
    client.receive(server.catch_up(1, client.round).data)
    client.restore(backup)
    with pytest.raises(RemoteProtocolError, match=r"upload of client 1 to a later round than \d"):
        client.receive(server.catch_up(1, client.round).data)
    fresh = new_client(1, name)
    assert fresh.receive(server.catch_up(1, 0).data).round == server.round


def test_a_server_from_an_earlier_version_does_not_guess_the_history_of_a_round():
    server = new_server("sgd", cache_bytes=0)
    client = new_client(1, "sgd")
    play(server, client, 0)
    client.receive(server.catch_up(1, 0).data)
    play(server, client, 1)
    old = copy_of(server)
    arrays = {name: array for name, array in old.arrays.items() if name != "stamps"}
    meta = {name: value for name, value in old.meta.items() if name != "first_stamp"}
    restored = new_server("sgd", cache_bytes=0)
    restored.restore(Snapshot(arrays, meta))
    with pytest.raises(RemoteProtocolError, match="does not say which history"):
        restored.catch_up(2, 1)
    assert (
        Client(2, METHODS["sgd"], client.terms.layout).receive(restored.catch_up(2, -1).data).round
        == 2
    )


def test_the_last_round_ends_with_an_error_that_changes_nothing():
    server = new_server("stc")
    server.round = MAX_ROUND
    client = new_client(1, "stc")
    client.round = MAX_ROUND
    server.receive(1, client.send_delta(np.ones(SIZE, np.float32)).data)
    before = server.snapshot().to_bytes()
    with pytest.raises(LocalProtocolError, match=r"finished 4294967294 rounds.*new federation"):
        server.finish_round()
    assert server.snapshot().to_bytes() == before


def test_messages_of_rounds_beyond_the_last_are_refused():
    server = new_server("stc")
    terms = server.terms
    for round in (MAX_ROUND, MAX_ROUND + 1):
        data = Broadcast.seal(server.stamp, round, b"\0", frozenset(), None, terms)
        with pytest.raises(DecodeError, match="at most 4294967294 rounds"):
            Broadcast.open(data, terms)
    data = CohortNotice.seal(server.stamp, MAX_ROUND, None, terms)
    assert CohortNotice.open(data, terms).header.round == MAX_ROUND
    last = Broadcast.seal(server.stamp, MAX_ROUND - 1, b"\0", frozenset(), None, terms)
    client = new_client(1, "stc")
    client.round = MAX_ROUND - 1
    assert client.receive(last).round == MAX_ROUND
