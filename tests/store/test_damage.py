"""Damaged stores: nothing acknowledged is ever lost silently."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedtern import DamagedStoreError, DurableClient, DurableServer, Server, Store
from fedtern.cli.app import app
from fedtern.store import log as log_module

sys.path.insert(0, str(Path(__file__).parent))

import damage
from damage import METHODS, START, make_samples, new_client, new_server


def total(found) -> Counter[str]:
    return sum(found.values(), Counter())


def test_a_sample_of_damages_causes_no_silent_loss():
    found = damage.run(every=211, methods=["stc"])
    counts = total(found)
    assert counts["SILENT LOSS"] == 0, found
    assert min(counts["reported"], counts["unharmed"]) > 100


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_thousands_of_damaged_bytes_and_truncations_cause_no_silent_loss(method):
    # Every byte takes a long time: python tests/store/damage.py
    found = damage.run(every=11, methods=[method])
    counts = total(found)
    print(f"\n{method}: {dict(counts)}")
    assert counts["SILENT LOSS"] == 0, found
    for kind in ("one byte", "truncated"):
        logs = total({key: c for key, c in found.items() if key[1:] == (kind, "log")})
        assert sum(logs.values()) > 648


@pytest.fixture
def sample(tmp_path):
    """Closed stores of a server and a client, by name."""
    list(make_samples(tmp_path, "stc"))
    return tmp_path


def newest(path: Path, kind: str) -> Path:
    return max(file for file in path.glob(f"*.{kind}") if file.stem.isdecimal())


def check(path: Path):
    return CliRunner().invoke(app, ["store", "check", str(path)])


@pytest.mark.parametrize("harm", ["missing", "truncated", "zeroed", "flipped"])
def test_a_damaged_log_is_reported_and_the_loss_can_be_accepted(sample, harm):
    path = sample / "server"
    log = newest(path, "log")
    data = log.read_bytes()
    assert check(path).exit_code == 0
    with Store(path) as store:
        round = DurableServer(new_server("stc"), store).round
    if harm == "missing":
        log.unlink()
    elif harm == "truncated":
        log.write_bytes(data[: len(data) // 2])
    elif harm == "zeroed":
        log.write_bytes(bytes(len(data)))
    else:
        log.write_bytes(data[:300] + bytes([data[300] ^ 4]) + data[301:])
    harmed = {file.name: file.read_bytes() for file in path.iterdir()}
    result = check(path)
    assert result.exit_code == 1
    assert log.name in result.output
    assert "lost" in result.output
    assert "--accept-loss" in result.output
    recoverable = int(result.output.split("round that can be recovered: ")[1].split()[0])
    with Store(path) as store, pytest.raises(DamagedStoreError, match=r"lost.*--accept-loss"):
        DurableServer(new_server("stc"), store)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == harmed
    with Store(path, accept_loss=True) as store:
        server = DurableServer(new_server("stc"), store)
        assert server.recovered
        assert server.round == recoverable < round
        assert store.losses
        server.finish_round()
    with Store(path) as store:  # the loss is not reported again
        assert DurableServer(new_server("stc"), store).round == recoverable + 1
    assert harm == "missing" or list(path.glob("*.damaged-*"))


def test_a_client_without_a_readable_snapshot_starts_again_if_the_loss_is_accepted(sample):
    path = sample / "client"
    newest(path, "safetensors").write_bytes(b"damaged")
    assert check(path).exit_code == 1
    with Store(path, accept_loss=True) as store:
        client = DurableClient(new_client(0, "stc"), store)
        assert not client.recovered
        assert (client.round, client.residual.any()) == (0, False)
    with Store(path) as store:
        assert DurableClient(new_client(0, "stc"), store).recovered


def test_a_server_without_a_readable_snapshot_never_starts_from_round_0(sample):
    path = sample / "server"
    for snapshot in path.glob("*.safetensors"):
        snapshot.write_bytes(b"damaged")
    with Store(path, accept_loss=True) as store, pytest.raises(DamagedStoreError):
        DurableServer(new_server("stc"), store)


def test_a_kill_between_snapshot_and_log_is_no_damage(sample):
    path = sample / "client"
    before = damage.open_client(path, "stc")
    log = newest(path, "log")
    with Store(path) as store:
        DurableClient(new_client(0, "stc"), store).store.checkpoint(new_client_state(path, store))
    log = newest(path, "log")
    log.rename(log.with_name(log.name + ".new"))
    assert damage.open_client(path, "stc") == before


def new_client_state(path: Path, store: Store):
    """Return a snapshot of the client in a store that is open already."""
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    (copy / "lock").unlink(missing_ok=True)
    with Store(copy) as other:
        return DurableClient(new_client(0, "stc"), other).client.snapshot()


def test_unsynced_records_that_a_power_failure_has_lost_are_logged(sample, monkeypatch, caplog):
    path = sample / "client-killed"
    log = newest(path, "log")
    log.write_bytes(log.read_bytes()[:-3])
    with Store(path) as store, pytest.raises(DamagedStoreError):
        DurableClient(new_client(0, "stc"), store)
    monkeypatch.setattr(log_module, "boot_number", lambda: 7)
    with caplog.at_level(logging.WARNING), Store(path) as store:
        DurableClient(new_client(0, "stc"), store)
    assert "a power failure may have lost unsynced records" in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_the_owner_can_read_the_files_of_a_store(tmp_path):
    old_mask = os.umask(0)
    try:
        list(make_samples(tmp_path, "stc"))
        for name in ("server", "client"):
            path = tmp_path / name
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
            files = list(path.iterdir())
            assert len(files) > 2
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        newest(tmp_path / "server", "log").chmod(0o644)  # as earlier versions did
        damage.open_server(tmp_path / "server", "stc")
        modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "server").iterdir()}
        assert modes == {0o600}
    finally:
        os.umask(old_mask)


def test_a_directory_without_a_store_is_reported(tmp_path):
    result = check(tmp_path)
    assert result.exit_code == 1
    assert "is not a store" in result.output


def test_stamps_are_known_after_a_restart(tmp_path):
    """A model says which history its client must have, also for rounds that are not cached."""
    path = tmp_path / "server"
    for _ in range(3):
        with Store(path, log_bytes=0) as store:
            server = DurableServer(Server(START, METHODS["stc"], cache_bytes=0), store)
            server.finish_round()
            stamps = server.server._stamps
            assert len(stamps.data) == 3 * (server.round + 1)
            assert stamps.at(server.round) == server.stamp
