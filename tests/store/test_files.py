"""Atomic writes, and directory locks across real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from fedtern import StoreError
from fedtern.core.errors import LockedError
from fedtern.store.files import Lock, write_atomic

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

LOCK_AND_WAIT = """
import sys, time
from pathlib import Path
from fedtern.store.files import Lock
lock = Lock(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(600)
"""

LOCK_AND_FORK = """
import os, sys, time
from pathlib import Path
from fedtern.store.files import Lock
lock = Lock(Path(sys.argv[1]))
if os.fork() == 0:
    print(os.getpid(), flush=True)  # by the child: it has closed what it must not inherit
time.sleep(600)
"""


def start(script, directory):
    """Start a process and return it with the first line it prints."""
    command = [sys.executable, "-c", script, str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def kill(process):
    process.kill()
    process.stdout.close()
    process.wait(timeout=60)


def test_a_locked_directory_is_an_error_that_names_it(tmp_path):
    lock = Lock(tmp_path)
    with pytest.raises(LockedError) as raised:
        Lock(tmp_path)
    assert str(raised.value) == (
        f"{tmp_path} is locked by another process; stop that process or wait for it"
    )
    assert isinstance(raised.value, StoreError)
    lock.close()


def test_a_lock_of_another_process_is_released_when_that_process_is_killed(tmp_path):
    process, _ = start(LOCK_AND_WAIT, tmp_path)
    with pytest.raises(LockedError):
        Lock(tmp_path)
    kill(process)
    assert (tmp_path / "lock").exists() or os.name == "nt"
    Lock(tmp_path).close()


@needs_fork
def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(tmp_path):
    process, child = start(LOCK_AND_FORK, tmp_path)
    with pytest.raises(LockedError):
        Lock(tmp_path)
    # The child holds the other end of the pipe, so it must go before the pipe is closed.
    process.kill()
    process.wait(timeout=60)
    try:
        os.kill(int(child), 0)  # it still runs
        Lock(tmp_path).close()
    finally:
        os.kill(int(child), signal.SIGKILL)
        process.stdout.close()


@needs_fork
def test_a_forked_child_cannot_release_the_lock_of_its_parent(tmp_path):
    lock = Lock(tmp_path)
    child = os.fork()
    if child == 0:
        lock.close()
        os._exit(0 if lock.closed else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not lock.closed
    with pytest.raises(LockedError):
        Lock(tmp_path)
    lock.close()


def test_an_old_lock_file_locks_nothing(tmp_path):
    (tmp_path / "lock").write_bytes(b"left behind")
    Lock(tmp_path).close()


def test_a_lock_can_be_closed_twice_and_in_another_thread(tmp_path):
    lock = Lock(tmp_path)
    thread = threading.Thread(target=lock.close)
    thread.start()
    thread.join()
    assert lock.closed
    lock.close()
    Lock(tmp_path).close()


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "file"
    assert write_atomic(path, [b"old", b" content"]) == 11

    def interrupted():
        yield b"new"
        raise KeyboardInterrupt

    for concurrent in (False, True):
        with pytest.raises(KeyboardInterrupt):
            write_atomic(path, interrupted(), concurrent=concurrent)
    assert path.read_bytes() == b"old content"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_atomic(tmp_path / "file", [b"content"])
    assert raised.value.filename == str(tmp_path / "file")
