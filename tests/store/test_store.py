"""Logs, stores, and durable servers and clients: recovery, damage and full disks."""

from __future__ import annotations

import errno
import os
import time
import zlib
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from checks import LAYOUT, METHODS, pair, trained
from fedtern import (
    DamagedStoreError,
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
from fedtern.store import log as log_module
from fedtern.store.log import Log, create_log

STC = METHODS["stc"]


@pytest.fixture
def open_store():
    """Opens stores, and closes them after the test."""
    with ExitStack() as stack:

        def store(*args, **options) -> Store:
            return stack.enter_context(Store(*args, **options))

        yield store


@pytest.fixture
def open_server(open_store):
    return lambda path, **options: DurableServer(pair(STC)[0], open_store(path, **options))


@pytest.fixture
def open_client(open_store):
    return lambda path, i=0: DurableClient(pair(STC)[1][i], open_store(path))


def new_log(path) -> Log:
    create_log(path).replace(path)
    return Log(path)


def play_rounds(server, clients, rounds: int) -> None:
    for _ in range(rounds):
        for client in clients:
            client.receive(server.catch_up(client.client.client_id, client.round).data)
            data = client.send(trained(client.client, 1)).data
            server.receive(client.client.client_id, data)
        server.finish_round()


def test_complete_records_are_read_back_wherever_an_interrupted_write_ends(tmp_path):
    log = new_log(tmp_path / "log")
    head = (tmp_path / "log").read_bytes()
    records = [os.urandom(n) for n in (0, 1, 700, 3)]
    for i, record in enumerate(records):
        log.append(record, sync=i % 2 == 0)
    log.close()
    whole = (tmp_path / "log").read_bytes()
    ends = np.cumsum([len(head)] + [8 + len(record) for record in records])
    for cut in range(len(head), len(whole) + 1):
        path = tmp_path / "cut"
        # With the first commit: none of the records was acknowledged.
        path.write_bytes((head + whole[len(head) :])[:cut])
        log = Log(path)
        survivors = int((ends[1:] <= cut).sum())
        assert list(log.records()) == records[:survivors]
        assert log.note is None
        log.append(b"next", sync=True)
        assert list(log.records()) == [*records[:survivors], b"next"]
        log.close()


def test_the_last_record_may_be_unacknowledged_but_never_an_earlier_one(tmp_path):
    path = tmp_path / "log"
    log = new_log(path)
    states = [path.read_bytes()]
    for i in range(4):
        log.append(b"record %d" % i, sync=i == 2)
        states.append(path.read_bytes())
    log.close()
    for i, (before, after) in enumerate(pairwise(states)):
        # A kill between the write of a record and its commit, with any part of the record.
        for end in range(len(before), len(after) + 1):
            path.write_bytes(before[:96] + after[96:end])
            log = Log(path)
            assert len(list(log.records())) == i + (end == len(after))
            log.close()
        for end in range(len(after)):
            path.write_bytes(after[:end])
            with pytest.raises(DamagedStoreError):
                Log(path)


def test_incomplete_records_are_dropped_but_damaged_acknowledged_records_are_reported(tmp_path):
    path = tmp_path / "log"
    log = new_log(path)
    for i in range(6):
        log.append(b"record %d" % i, sync=i in (3, 4))
    log.close(sync=False)
    data = path.read_bytes()
    path.write_bytes(data + b"half a record")
    log = Log(path)
    assert len(list(log.records())) == 6
    assert log.dropped_bytes == 13
    log.close()
    for at in range(96, len(data)):  # every byte of every record, also of the last
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        kind = "synced" if at < 96 + 5 * 16 else "written"
        pattern = rf"damaged at byte \d+, although it was {kind} up to byte \d+: \d of 6 records"
        with pytest.raises(DamagedStoreError, match=pattern):
            Log(path)
        assert path.read_bytes() == damaged
    path.write_bytes(b"something else entirely")
    with pytest.raises(DamagedStoreError, match="is not a log of fedtern"):
        Log(path)


def test_a_power_failure_may_lose_unsynced_records_only(tmp_path, monkeypatch):
    path = tmp_path / "log"
    log = new_log(path)
    for i in range(6):
        log.append(b"record %d" % i, sync=i == 3)
    log.close(sync=False)
    data = path.read_bytes()
    monkeypatch.setattr(log_module, "boot_number", lambda: 12345)
    for end in range(96 + 4 * 16, len(data)):
        path.write_bytes(data[:end].ljust(len(data), b"\0"))
        log = Log(path)
        assert "2 of 6" in log.note or "1 of 6" in log.note
        log.close()
        log = Log(path)  # the report is not repeated
        assert log.note is None
        log.close()
    path.write_bytes(data[: 96 + 4 * 16 - 1])
    with pytest.raises(DamagedStoreError, match="although it was synced"):
        Log(path)


def test_accepted_loss_keeps_the_intact_records_and_a_copy_of_the_log(tmp_path):
    path = tmp_path / "log"
    log = new_log(path)
    for i in range(6):
        log.append(b"record %d" % i, sync=True)
    log.close()
    data = bytearray(path.read_bytes())
    data[96 + 3 * 16 + 9] ^= 1
    path.write_bytes(data)
    log = Log(path, accept_loss=True)
    assert "3 of 6 records are lost" in log.loss
    log.append(b"next", sync=True)
    log.close()
    log = Log(path)
    assert list(log.records()) == [b"record 0", b"record 1", b"record 2", b"next"]
    log.close()
    assert (tmp_path / "log.damaged-0").read_bytes() == data


def test_a_log_of_an_earlier_version_is_converted(tmp_path):
    def first_version(records, synced):
        body = b"".join(
            len(r).to_bytes(4, "little")
            + zlib.crc32(r, zlib.crc32(len(r).to_bytes(4, "little"))).to_bytes(4, "little")
            + r
            for r in records
        )
        end = synced.to_bytes(8, "little")
        return b"FTLOG\x01\r\n" + end + zlib.crc32(end).to_bytes(4, "little") + body

    path = tmp_path / "log"
    records = [b"one", b"", b"three"]
    path.write_bytes(first_version(records, 31) + b"torn")
    log = Log(path)
    assert list(log.records()) == records
    assert log.dropped_bytes == 4
    log.append(b"four", sync=True)
    log.close()
    log = Log(path)
    assert list(log.records()) == [*records, b"four"]
    log.close()
    path.write_bytes(first_version(records, 31)[:25])
    with pytest.raises(DamagedStoreError, match="earlier version, is damaged at byte 20"):
        Log(path)


def test_a_large_incomplete_record_is_dropped_quickly(tmp_path):
    path = tmp_path / "log"
    log = new_log(path)
    head = path.read_bytes()
    log.append(np.random.default_rng(0).bytes(30 << 20), sync=False)
    log.close(sync=False)
    with path.open("r+b") as file:
        file.write(head)  # killed before the commit
    os.truncate(path, 25 << 20)
    begin = time.process_time()
    log = Log(path)
    assert time.process_time() - begin < 5
    assert log.dropped_bytes == (25 << 20) - 96
    log.close()


def test_a_discarded_upload_stays_discarded_after_a_restart_and_can_be_sent_again(
    tmp_path, open_server, open_client
):
    server = open_server(tmp_path / "s")
    client = open_client(tmp_path / "c")
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
def test_a_store_refuses_calls_after_a_change_that_was_not_recorded(
    tmp_path, open_server, open_client, monkeypatch, error
):
    server = open_server(tmp_path / "s")
    client = open_client(tmp_path / "c")
    data = client.send(trained(client.client, 0)).data

    def interrupt(*_args, **_options):
        raise error

    monkeypatch.setattr(Log, "append", interrupt)
    with pytest.raises(error):
        server.receive(0, data)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="interrupted before it was recorded"):
        server.finish_round()
    server.store.close()
    with pytest.raises(StoreError, match="is closed"):
        server.finish_round()
    assert open_server(tmp_path / "s").uploaded == set()


def test_a_store_continues_after_a_refused_call(tmp_path, open_server, open_client):
    server = open_server(tmp_path / "s")
    client = open_client(tmp_path / "c")
    data = client.send(trained(client.client, 0)).data
    with pytest.raises(RemoteProtocolError):
        server.receive(0, data, num_examples=-2.5)
    with pytest.raises(RemoteProtocolError):
        server.receive(0, b"garbage")
    with pytest.raises(LocalProtocolError):
        server.discard(0)
    server.receive(0, data)
    assert server.finish_round().counted == {0}


def test_the_log_of_a_client_that_never_uploads_stays_small(tmp_path, open_server, open_store):
    server = open_server(tmp_path / "s")
    store = open_store(tmp_path / "c", log_bytes=2000)
    client = DurableClient(pair(STC)[1][0], store)
    for _ in range(100):
        client.receive(server.finish_round().data)
    assert sum(path.stat().st_size for path in (tmp_path / "c").glob("*.log")) < 5000
    assert client.round == 100
    assert (client.client_id, client.residual.any()) == (0, False)


@pytest.mark.parametrize("log_bytes", [0, 300, None])
def test_servers_and_clients_have_the_same_state_after_a_restart(
    tmp_path, log_bytes, open_server, open_client, open_store
):
    server = open_server(tmp_path / "s", log_bytes=log_bytes)
    clients = [DurableClient(c, open_store(tmp_path / f"c{c.client_id}")) for c in pair(STC)[1]]
    play_rounds(server, clients, 7)
    data = clients[0].pending
    expected = server.server.snapshot().to_bytes()
    server.store.close()
    restarted = open_server(tmp_path / "s", log_bytes=log_bytes)
    assert restarted.recovered
    assert restarted.server.snapshot().to_bytes() == expected
    with pytest.raises(LateUpload):
        restarted.receive(0, data)
    for client in clients:
        client.store.close()
        twin = open_client(tmp_path / f"c{client.client.client_id}", client.client.client_id)
        assert twin.client.snapshot().to_bytes() == client.client.snapshot().to_bytes()
    assert len(list((tmp_path / "s").glob("*.safetensors"))) <= 2


def test_accepted_uploads_survive_a_restart(tmp_path, open_server, open_client):
    server = open_server(tmp_path / "s")
    client = open_client(tmp_path / "c")
    server.receive(0, client.send(trained(client.client, 0)).data, num_examples=5)
    server.store.close()
    restarted = open_server(tmp_path / "s")
    assert restarted.uploaded == {0}
    assert restarted.finish_round().counted == {0}
    assert (restarted.round, restarted.cohort) == (1, None)


def test_numbers_of_examples_survive_a_restart(tmp_path, open_store):
    broadcasts = []
    for restart in (False, True):
        server, clients = pair(METHODS["stc-tensor"])  # weighted by examples
        durable = DurableServer(server, open_store(tmp_path / str(restart)))
        for client, examples in zip(clients, (1, 50, 7), strict=True):
            data = client.send(trained(client, 0)).data
            durable.receive(client.client_id, data, num_examples=examples)
        if restart:
            durable.store.close()
            new_server, _ = pair(METHODS["stc-tensor"])
            durable = DurableServer(new_server, open_store(tmp_path / str(restart)))
        broadcasts.append(durable.finish_round(next_cohort=[1]).data)
    assert broadcasts[0] == broadcasts[1]


def test_a_damaged_snapshot_is_recomputed_from_the_previous_one(tmp_path, open_server, open_client):
    server = open_server(tmp_path / "s", log_bytes=0)
    client = open_client(tmp_path / "c")
    play_rounds(server, [client], 5)
    weights = server.weights.tobytes()
    server.store.close()
    newest = max((tmp_path / "s").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-7])
    restarted = open_server(tmp_path / "s", log_bytes=0)
    assert restarted.weights.tobytes() == weights
    play_rounds(restarted, [client], 2)
    for path in (tmp_path / "s").glob("*.safetensors"):
        path.write_bytes(b"")
    restarted.store.close()
    with pytest.raises(StoreError, match=r"not a fedtern snapshot.*from a backup"):
        open_server(tmp_path / "s")


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_a_client_is_never_restored_to_a_state_before_an_upload(
    tmp_path, open_server, open_client, damage, crash, monkeypatch
):
    server = open_server(tmp_path / "s")
    client = open_client(tmp_path / "c")
    play_rounds(server, [client], 3)
    if crash:  # between writing the new snapshot and removing the old one
        monkeypatch.setattr(Path, "unlink", lambda *_args, **_options: None)
    play_rounds(server, [client], 1)
    monkeypatch.undo()
    client.store.close()
    newest = max((tmp_path / "c").glob("*.safetensors"))
    if damage == "cut":
        newest.write_bytes(newest.read_bytes()[:-7])
    else:
        newest.unlink()
    with pytest.raises(StoreError, match=r"the client starts again with an empty residual"):
        open_client(tmp_path / "c")


def test_a_client_without_later_uploads_is_restored_from_the_previous_snapshot(
    tmp_path, open_server, open_store
):
    def open_client():
        return DurableClient(pair(STC)[1][0], open_store(tmp_path / "c", log_bytes=200))

    server = open_server(tmp_path / "s")
    client = open_client()
    play_rounds(server, [client], 2)
    client.receive(server.catch_up(0, client.round).data)
    while len(list((tmp_path / "c").glob("*.safetensors"))) < 2:
        client.receive(server.finish_round().data)
    client.store.close()
    newest = max((tmp_path / "c").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-7])
    restarted = open_client()
    assert restarted.client.snapshot().to_bytes() == client.client.snapshot().to_bytes()


def test_a_server_with_a_missing_snapshot_does_not_start_from_round_0(tmp_path, open_server):
    server = open_server(tmp_path / "s")
    server.finish_round()
    server.store.close()
    (tmp_path / "s" / "00000000.safetensors").unlink()
    with pytest.raises(StoreError, match=r"00000000\.safetensors is missing; restore a server's"):
        open_server(tmp_path / "s")


def test_a_cleared_store_starts_from_the_initial_state(tmp_path, open_server, open_store):
    server = open_server(tmp_path / "s")
    server.finish_round()
    server.store.close()
    for path in (tmp_path / "s").glob("*.safetensors"):
        path.write_bytes(b"")
    store = open_store(tmp_path / "s")
    with pytest.raises(StoreError, match="not a fedtern snapshot"):
        DurableServer(pair(STC)[0], store)
    store.clear()
    restarted = DurableServer(pair(STC)[0], store)
    assert (restarted.recovered, restarted.round) == (False, 0)
    restarted.finish_round()
    store.close()
    assert open_server(tmp_path / "s").round == 1


def test_records_that_were_read_back_after_a_kill_are_synced_on_opening(tmp_path, monkeypatch):
    log = new_log(tmp_path / "log")
    log.append(b"accepted", sync=False)
    log.close(sync=False)
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    log = Log(tmp_path / "log")
    assert synced == [log._file]
    log.close()
    Log(tmp_path / "log").close()
    assert len(synced) == 1


def test_a_log_without_a_start_is_refused(tmp_path):
    log = new_log(tmp_path / "log")
    log.append(b"kept", sync=True)
    log.close()
    whole = (tmp_path / "log").read_bytes()
    damages = [b"", bytes(500), bytes(len(whole)), bytes(96) + whole[96:], b"something else " * 9]
    for damaged in damages:
        check_refused(tmp_path / "log", damaged)


def check_refused(path, data):
    """Check that a log is refused and that its file is closed."""
    path.write_bytes(data)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(3):
        with pytest.raises(StoreError, match=r"not a log.*restore a server's directory"):
            Log(path)
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_a_store_refuses_calls_after_an_interrupted_snapshot(
    tmp_path, open_server, open_client, monkeypatch
):
    """Later uploads would be recorded in the log of the previous snapshot."""
    server = open_server(tmp_path / "server", log_bytes=1)
    client = open_client(tmp_path / "client")

    def interrupt(path, chunks, **options):
        files.write_atomic(path, chunks, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr("fedtern.store.directory.write_atomic", interrupt)
    server.receive(0, client.client.send(trained(client.client, 1)).data)
    with pytest.raises(KeyboardInterrupt):
        server.finish_round()
    monkeypatch.undo()
    client.client.receive(server.server.newest_broadcast(0))
    with pytest.raises(StoreError, match="interrupted"):
        server.receive(0, client.client.send(trained(client.client, 2)).data)


def test_an_interrupted_clear_leaves_only_the_newest_snapshot(tmp_path, open_server, open_client):
    server = open_server(tmp_path / "server", log_bytes=1)
    client = open_client(tmp_path / "client")
    play_rounds(server, [client], 3)
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


def test_a_store_cannot_be_opened_twice_at_the_same_time(tmp_path, open_server, open_store):
    server = open_server(tmp_path / "s")
    with pytest.raises(StoreError, match="is locked by another process"):
        open_store(tmp_path / "s")
    server.store.close()
    with open_store(tmp_path / "s") as store:
        assert DurableServer(pair(STC)[0], store).round == 0


def test_a_store_of_another_method_or_kind_is_refused(
    tmp_path, open_server, open_client, open_store
):
    server = open_server(tmp_path / "s")
    server.store.close()
    other = Server(server.weights, METHODS["topk"], LAYOUT)
    with (
        Store(tmp_path / "s") as store,
        pytest.raises(StoreError, match="belongs to another state: the snapshot's method is"),
    ):
        DurableServer(other, store)
    with pytest.raises(StoreError, match="belongs to another state: the snapshot's kind"):
        open_client(tmp_path / "s")


def test_a_directory_that_cannot_be_created_is_reported(tmp_path, open_store):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"cannot open the store .*file/s"):
        open_store(tmp_path / "file" / "s")


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_reported_and_acknowledged_rounds_survive(
    tmp_path, monkeypatch, call, open_server, open_client
):
    server = open_server(tmp_path / "s")
    client = open_client(tmp_path / "c")
    play_rounds(server, [client], 3)
    weights = server.weights.tobytes()
    catch_up = server.catch_up(0, 1).data
    client.receive(server.catch_up(0, client.round).data)
    data = client.send(trained(client.client, 1)).data
    real = getattr(os, call)

    def full(fd, *args):
        if call == "write" and args and len(args[0]) > 10:
            real(fd, args[0][:10])  # a part still fits on the disk
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    if call == "fsync":  # an upload alone is written but not synced
        server.receive(0, data)
    attempt = server.finish_round if call == "fsync" else partial(server.receive, 0, data)
    with pytest.raises(StoreError, match=r"cannot write the store .*No space left on device"):
        attempt()
    monkeypatch.undo()
    for refused in (server.finish_round, partial(server.catch_up, 0, 0)):
        with pytest.raises(StoreError, match=r"has failed .*; open it again"):
            refused()
    server.store.close()
    restarted = open_server(tmp_path / "s")
    # The round may be on the disk although fsync failed. Earlier rounds must be.
    if restarted.round == 3:
        assert restarted.weights.tobytes() == weights
        assert restarted.catch_up(0, 1).data == catch_up
    else:
        assert (call, restarted.round) == ("fsync", 4)


def test_a_real_full_disk_is_reported(tmp_path, open_store):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    store = open_store(tmp_path / "s")
    server = DurableServer(pair(STC)[0], store)
    store._log.close()
    store._log._file = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(StoreError, match="No space left on device"):
        server.finish_round()


def test_a_store_refuses_changes_before_recover(tmp_path, open_store):
    store = open_store(tmp_path / "s")
    with pytest.raises(StoreError, match="call recover first"):
        store.record(lambda: None, lambda _: b"record", sync=True)


def test_every_damaged_byte_of_a_snapshot_is_detected():
    _, clients = pair(STC)
    clients[0].send(trained(clients[0], 0))
    data = clients[0].snapshot().to_bytes()
    assert Snapshot.from_bytes(data).meta["round"] == 0
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(DecodeError):
            Snapshot.from_bytes(bytes(damaged))


@pytest.mark.parametrize(
    "header", [b"5", b'"x"', b"[]", b"{}", b'{"__metadata__": {"crc32": "Infinity"}}']
)
def test_snapshots_with_an_invalid_header_are_refused(header):
    with pytest.raises(DecodeError):
        Snapshot.from_bytes(len(header).to_bytes(8, "little") + header)
