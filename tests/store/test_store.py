from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from checks import LAYOUT, METHODS, pair, trained
from fedtern import (
    DecodeError,
    DurableClient,
    DurableServer,
    LateUpload,
    LocalProtocolError,
    RemoteProtocolError,
    Server,
    Snapshot,
    Store,
    StoreError,
)
from fedtern.store import files
from fedtern.store.log import Log

STC = METHODS["stc"]


@pytest.fixture
def opened():
    """Closes every store that a test has opened."""
    with ExitStack() as stack:

        def store(*args, **options) -> Store:
            return stack.enter_context(Store(*args, **options))

        yield store


@pytest.fixture
def open_server(opened):
    return lambda path, **options: DurableServer(pair(STC)[0], opened(path, **options))


@pytest.fixture
def open_client(opened):
    return lambda path, i=0: DurableClient(pair(STC)[1][i], opened(path))


def play(server, clients, rounds: int) -> None:
    for _ in range(rounds):
        for client in clients:
            client.receive(server.catch_up(client.client.client_id, client.round).data)
            data = client.send(trained(client.client, 1)).data
            server.receive(client.client.client_id, data)
        server.finish_round()


def test_records_come_back_in_order_and_a_torn_tail_is_cut_anywhere(tmp_path):
    log = Log(tmp_path / "log")
    records = [os.urandom(n) for n in (0, 1, 700, 3)]
    for i, record in enumerate(records):
        log.append(record, sync=i % 2 == 0)
    log.close()
    whole = (tmp_path / "log").read_bytes()
    ends = np.cumsum([20] + [8 + len(record) for record in records])
    for cut in range(len(whole) + 1):
        path = tmp_path / "cut"
        # What was synced is not lost by a cut-off write: only a log that never knew is cut there.
        path.write_bytes((whole[:8] + bytes(12) + whole[20:])[:cut])
        log = Log(path)
        survivors = int((ends[1:] <= cut).sum())
        assert list(log.records()) == records[:survivors]
        log.append(b"next", sync=True)
        assert list(log.records()) == [*records[:survivors], b"next"]
        log.close()


def test_an_unfinished_write_is_cut_but_damage_to_finished_ones_is_reported(tmp_path):
    path = tmp_path / "log"
    log = Log(path)
    for i in range(6):
        log.append(b"record %d" % i, sync=i in (3, 4))
    log.close()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the last record, which was never synced
    path.write_bytes(data)
    log = Log(path)
    assert len(list(log.records())) == 5
    assert log.torn == 16
    log.close()
    for at in range(20, 20 + 4 * 16):  # any byte that a later sync has vouched for
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"log is damaged at byte \d+, and was safely written"):
            Log(path)
    path.write_bytes(b"something else entirely")
    with pytest.raises(StoreError, match="is not a log of this package"):
        Log(path)


def test_a_large_torn_record_is_cut_in_no_time(tmp_path):
    path = tmp_path / "log"
    log = Log(path)
    log.append(np.random.default_rng(0).bytes(30 << 20), sync=False)
    log.close()
    os.truncate(path, 25 << 20)
    begin = time.process_time()
    log = Log(path)
    assert time.process_time() - begin < 5
    assert log.torn == (25 << 20) - 20
    log.close()


def test_a_discarded_upload_stays_discarded_and_can_be_sent_again(
    tmp_path, open_server, open_client
):
    server, client = open_server(tmp_path / "s"), open_client(tmp_path / "c")
    data = client.send(trained(client.client, 0)).data
    server.receive(0, data)
    server.discard(0)
    server.store.close()
    server = open_server(tmp_path / "s")
    assert server.uploaded == set()
    server.receive(0, data)
    server.store.close()
    server = open_server(tmp_path / "s")
    assert server.finish_round().counted == {0}
    server.store.close()
    assert open_server(tmp_path / "s").round == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_change_that_was_not_written_down_ends_the_store(
    tmp_path, open_server, open_client, monkeypatch, error
):
    server, client = open_server(tmp_path / "s"), open_client(tmp_path / "c")
    data = client.send(trained(client.client, 0)).data

    def interrupt(*_args, **_options):
        raise error

    monkeypatch.setattr(Log, "append", interrupt)
    with pytest.raises(error):
        server.receive(0, data)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="interrupted before it was written down"):
        server.finish_round()
    server.store.close()
    with pytest.raises(StoreError, match="is closed"):
        server.finish_round()
    assert open_server(tmp_path / "s").uploaded == set()


def test_a_refused_call_does_not_end_the_store(tmp_path, open_server, open_client):
    server, client = open_server(tmp_path / "s"), open_client(tmp_path / "c")
    data = client.send(trained(client.client, 0)).data
    with pytest.raises(TypeError):
        server.receive(0, data, num_examples=2.5)
    with pytest.raises(RemoteProtocolError):
        server.receive(0, b"garbage")
    with pytest.raises(LocalProtocolError):
        server.discard(0)
    server.receive(0, data)
    assert server.finish_round().counted == {0}


def test_a_client_that_only_listens_does_not_grow_its_log_for_ever(tmp_path, open_server, opened):
    server = open_server(tmp_path / "s")
    store = opened(tmp_path / "c", log_bytes=2000)
    client = DurableClient(pair(STC)[1][0], store)
    for _ in range(100):
        client.receive(server.finish_round().data)
    assert sum(path.stat().st_size for path in (tmp_path / "c").glob("*.log")) < 5000
    assert client.round == 100
    assert (client.client_id, client.residual.any()) == (0, False)


@pytest.mark.parametrize("log_bytes", [0, 300, None])
def test_a_server_comes_back_as_it_was(tmp_path, log_bytes, open_server, open_client, opened):
    server = open_server(tmp_path / "s", log_bytes=log_bytes)
    clients = [DurableClient(c, opened(tmp_path / f"c{c.client_id}")) for c in pair(STC)[1]]
    play(server, clients, 7)
    data = clients[0].pending
    expected = server.server.snapshot().to_bytes()
    server.store.close()
    again = open_server(tmp_path / "s", log_bytes=log_bytes)
    assert again.recovered
    assert again.server.snapshot().to_bytes() == expected
    with pytest.raises(LateUpload):
        again.receive(0, data)
    for client in clients:
        client.store.close()
        twin = open_client(tmp_path / f"c{client.client.client_id}", client.client.client_id)
        assert twin.client.snapshot().to_bytes() == client.client.snapshot().to_bytes()
    assert len(list((tmp_path / "s").glob("*.safetensors"))) <= 2


def test_accepted_uploads_survive(tmp_path, open_server, open_client):
    server, client = open_server(tmp_path / "s"), open_client(tmp_path / "c")
    server.receive(0, client.send(trained(client.client, 0)).data, num_examples=5)
    server.store.close()
    again = open_server(tmp_path / "s")
    assert again.uploaded == {0}
    assert again.finish_round().counted == {0}
    assert (again.round, again.cohort) == (1, None)


def test_examples_survive_with_the_uploads_they_weigh(tmp_path, opened):
    broadcasts = []
    for restart in (False, True):
        server, clients = pair(METHODS["stc-tensor"])  # weighted by examples
        durable = DurableServer(server, opened(tmp_path / str(restart)))
        for client, examples in zip(clients, (1, 50, 7), strict=True):
            data = client.send(trained(client, 0)).data
            durable.receive(client.client_id, data, num_examples=examples)
        if restart:
            durable.store.close()
            again, _ = pair(METHODS["stc-tensor"])
            durable = DurableServer(again, opened(tmp_path / str(restart)))
        broadcasts.append(durable.finish_round(next_cohort=[1]).data)
    assert broadcasts[0] == broadcasts[1]


def test_a_damaged_snapshot_is_worked_out_from_the_one_before(tmp_path, open_server, open_client):
    server, client = open_server(tmp_path / "s", log_bytes=0), open_client(tmp_path / "c")
    play(server, [client], 5)
    weights = server.weights.tobytes()
    server.store.close()
    newest = max((tmp_path / "s").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-7])
    again = open_server(tmp_path / "s", log_bytes=0)
    assert again.weights.tobytes() == weights
    play(again, [client], 2)
    for path in (tmp_path / "s").glob("*.safetensors"):
        path.write_bytes(b"")
    again.store.close()
    with pytest.raises(StoreError, match=r"not a fedtern snapshot.*from a backup"):
        open_server(tmp_path / "s")


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_a_client_never_goes_back_to_before_an_upload(
    tmp_path, open_server, open_client, damage, crash, monkeypatch
):
    server, client = open_server(tmp_path / "s"), open_client(tmp_path / "c")
    play(server, [client], 3)
    if crash:  # between writing the new snapshot and removing the old one
        monkeypatch.setattr(Path, "unlink", lambda *_args, **_options: None)
    play(server, [client], 1)
    monkeypatch.undo()
    client.store.close()
    newest = max((tmp_path / "c").glob("*.safetensors"))
    if damage == "cut":
        newest.write_bytes(newest.read_bytes()[:-7])
    else:
        newest.unlink()
    with pytest.raises(StoreError, match=r"remove a client's: it begins again with an empty"):
        open_client(tmp_path / "c")


def test_a_client_that_only_listened_since_comes_back_from_the_snapshot_before(
    tmp_path, open_server, opened
):
    def open_client():
        return DurableClient(pair(STC)[1][0], opened(tmp_path / "c", log_bytes=200))

    server, client = open_server(tmp_path / "s"), open_client()
    play(server, [client], 2)
    client.receive(server.catch_up(0, client.round).data)
    while len(list((tmp_path / "c").glob("*.safetensors"))) < 2:
        client.receive(server.finish_round().data)
    client.store.close()
    newest = max((tmp_path / "c").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-7])
    again = open_client()
    assert again.client.snapshot().to_bytes() == client.client.snapshot().to_bytes()


def test_a_server_whose_snapshots_are_gone_does_not_begin_again(tmp_path, open_server):
    server = open_server(tmp_path / "s")
    server.finish_round()
    server.store.close()
    (tmp_path / "s" / "00000000.safetensors").unlink()
    with pytest.raises(StoreError, match=r"00000000\.safetensors is missing; restore a server's"):
        open_server(tmp_path / "s")


def test_a_store_that_was_cleared_is_a_beginning(tmp_path, open_server, opened):
    server = open_server(tmp_path / "s")
    server.finish_round()
    server.store.close()
    for path in (tmp_path / "s").glob("*.safetensors"):
        path.write_bytes(b"")
    store = opened(tmp_path / "s")
    with pytest.raises(StoreError, match="not a fedtern snapshot"):
        DurableServer(pair(STC)[0], store)
    store.clear()
    again = DurableServer(pair(STC)[0], store)
    assert (again.recovered, again.round) == (False, 0)
    again.finish_round()
    store.close()
    assert open_server(tmp_path / "s").round == 1


def test_what_was_read_back_is_on_the_disk_before_it_is_called_safe(tmp_path, monkeypatch):
    log = Log(tmp_path / "log")
    log.append(b"accepted", sync=False)
    log.close()
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    log = Log(tmp_path / "log")
    assert synced == [log._file]
    log.close()


def test_a_log_whose_head_never_got_to_the_disk_is_a_new_one(tmp_path):
    (tmp_path / "log").write_bytes(bytes(500))
    log = Log(tmp_path / "log")
    assert list(log.records()) == []
    log.close()
    log = Log(tmp_path / "log")
    log.append(b"kept", sync=True)
    log.close()
    whole = (tmp_path / "log").read_bytes()
    for damaged in (bytes(20) + whole[20:], b"something else " * 9):
        refused(tmp_path / "log", damaged)


def refused(path, data):
    path.write_bytes(data)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(3):
        with pytest.raises(StoreError, match=r"not a log.*restore a server's directory"):
            Log(path)
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_an_interrupted_snapshot_ends_the_store(tmp_path, open_server, open_client, monkeypatch):
    """Or what is accepted after it would go to the log of the snapshot before."""
    server, client = open_server(tmp_path / "server", log_bytes=1), open_client(tmp_path / "client")

    def interrupt(path, chunks):
        files.write_atomic(path, chunks)
        raise KeyboardInterrupt

    monkeypatch.setattr("fedtern.store.directory.write_atomic", interrupt)
    server.receive(0, client.client.send(trained(client.client, 1)).data)
    with pytest.raises(KeyboardInterrupt):
        server.finish_round()
    monkeypatch.undo()
    client.client.receive(server.server.newest_broadcast(0))
    with pytest.raises(StoreError, match="interrupted"):
        server.receive(0, client.client.send(trained(client.client, 2)).data)


def test_a_store_cut_short_while_it_is_cleared_does_not_go_back(tmp_path, open_server, open_client):
    server, client = open_server(tmp_path / "server", log_bytes=1), open_client(tmp_path / "client")
    play(server, [client], 3)
    newest = max((tmp_path / "server").glob("*.safetensors"))
    removed = []
    real = Path.unlink

    def cut(path, **options):
        removed.append(path)
        if path == newest:
            raise KeyboardInterrupt
        real(path, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", cut)
        with pytest.raises(KeyboardInterrupt):
            server.store.clear()
    assert len(removed) > 2
    assert set((tmp_path / "server").glob("*.safetensors")) == {newest}


def test_a_draft_left_by_a_crash_is_ignored_and_removed(tmp_path, open_server):
    server = open_server(tmp_path / "s")
    server.finish_round()
    server.store.close()
    (tmp_path / "s" / "00000001.safetensors.draft").write_bytes(b"half a snapsh")
    assert open_server(tmp_path / "s").round == 1
    assert not list((tmp_path / "s").glob("*.draft"))


def test_snapshots_are_plain_safetensors(tmp_path, open_client):
    from safetensors.numpy import load_file

    client = open_client(tmp_path / "c")
    client.send(trained(client.client, 0))
    arrays = load_file(max((tmp_path / "c").glob("*.safetensors")))
    assert arrays["weights"].tobytes() == client.weights.tobytes()
    assert arrays["feedback.residual"].tobytes() == client.client.residual.tobytes()


def test_one_store_is_open_in_one_place_at_a_time(tmp_path, open_server, opened):
    server = open_server(tmp_path / "s")
    with pytest.raises(StoreError, match="is locked by another process"):
        opened(tmp_path / "s")
    server.store.close()
    with opened(tmp_path / "s") as store:
        assert DurableServer(pair(STC)[0], store).round == 0


def test_a_store_of_something_else_is_refused(tmp_path, open_server, open_client, opened):
    server = open_server(tmp_path / "s")
    server.store.close()
    other = Server(server.weights, METHODS["topk"], LAYOUT)
    with (
        Store(tmp_path / "s") as store,
        pytest.raises(StoreError, match="belongs to something else: the snapshot's method is"),
    ):
        DurableServer(other, store)
    with pytest.raises(StoreError, match="belongs to something else: the snapshot's kind"):
        open_client(tmp_path / "s")


def test_an_unwritable_place_is_a_clear_error(tmp_path, opened):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot open the store .*file/s"):
        opened(tmp_path / "file" / "s")


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_a_clear_error_and_loses_nothing_acknowledged(
    tmp_path, monkeypatch, call, open_server, open_client
):
    server, client = open_server(tmp_path / "s"), open_client(tmp_path / "c")
    play(server, [client], 3)
    weights, catch_up = server.weights.tobytes(), server.catch_up(0, 1).data
    client.receive(server.catch_up(0, client.round).data)
    data = client.send(trained(client.client, 1)).data
    real = getattr(os, call)

    def full(fd, *args):
        if call == "write" and args and len(args[0]) > 10:
            real(fd, args[0][:10])  # part of it still fits
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    if call == "fsync":  # an upload alone is written but not synced
        server.receive(0, data)
    attempt = server.finish_round if call == "fsync" else partial(server.receive, 0, data)
    with pytest.raises(StoreError, match=r"cannot write the store .*No space left on device"):
        attempt()
    monkeypatch.undo()
    for refused in (server.finish_round, partial(server.catch_up, 0, 0)):
        with pytest.raises(StoreError, match=r"failed before .*: start again"):
            refused()
    server.store.close()
    again = open_server(tmp_path / "s")
    # With fsync failing the round may have reached the disk after all; what came before must have.
    if again.round == 3:
        assert again.weights.tobytes() == weights
        assert again.catch_up(0, 1).data == catch_up
    else:
        assert (call, again.round) == ("fsync", 4)


def test_a_real_full_disk_is_a_clear_error(tmp_path, opened):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    store = opened(tmp_path / "s")
    server = DurableServer(pair(STC)[0], store)
    store._log.close()
    store._log._file = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(StoreError, match="No space left on device"):
        server.finish_round()


def test_a_store_that_was_never_recovered_or_is_closed_takes_nothing(tmp_path, opened):
    store = opened(tmp_path / "s")
    with pytest.raises(StoreError, match="nothing was recovered"):
        store.record(lambda: None, lambda _: b"record", sync=True)


def test_states_survive_as_bytes_and_every_damage_is_noticed():
    _, clients = pair(STC)
    clients[0].send(trained(clients[0], 0))
    data = clients[0].snapshot().to_bytes()
    assert Snapshot.from_bytes(data).meta["round"] == 0
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(DecodeError):
            Snapshot.from_bytes(bytes(damaged))
    for header in (b"5", b'"x"', b"[]", b"{}", b'{"__metadata__": {"crc32": "Infinity"}}'):
        with pytest.raises(DecodeError):
            Snapshot.from_bytes(len(header).to_bytes(8, "little") + header)
