from __future__ import annotations

import json
import os
import socket
from dataclasses import replace

from fedtern.runs.status import (
    FINISHED,
    RUNNING,
    STATUS_FILE,
    STOPPED,
    Clients,
    Lag,
    Status,
    StatusFile,
    read_status,
)

STATUS = Status(
    iteration=40,
    round=20,
    up_bytes=900,
    down_bytes=8000,
    up_bytes_mean=90.0,
    down_bytes_mean=800.0,
    seconds={"train": 1.5},
    clients=Clients(total=10, cohort=3, behind=(Lag(4, 7),), refused={"late": 2}),
)


def test_a_status_is_read_back_as_it_was_written(tmp_path):
    StatusFile(tmp_path).write(STATUS)
    found = read_status(tmp_path)
    assert found is not None
    clients = replace(found.status.clients, waiting_for=(), unresponsive=())
    assert replace(found.status, clients=clients) == STATUS
    assert (found.state, found.pid, found.host) == (RUNNING, os.getpid(), socket.gethostname())
    assert [path.name for path in tmp_path.iterdir()] == [STATUS_FILE]


def test_a_status_is_computed_only_when_it_is_written(tmp_path):
    calls = []

    def status():
        calls.append(1)
        return STATUS

    file = StatusFile(tmp_path, interval=1000)
    for _ in range(5):
        file.update(status)
    assert len(calls) == 1


def test_an_unwritable_directory_does_not_stop_the_training(tmp_path):
    StatusFile(tmp_path / "none").write(STATUS)
    assert read_status(tmp_path / "none") is None


def test_damaged_and_foreign_content_is_no_status(tmp_path):
    for text in ("", "[]", "{}", '{"status": 3}', '{"status": {"clients": {"behind": [1]}}}'):
        (tmp_path / STATUS_FILE).write_text(text)
        assert read_status(tmp_path) is None


def test_fields_of_a_later_version_are_ignored(tmp_path):
    StatusFile(tmp_path).write(STATUS)
    values = json.loads((tmp_path / STATUS_FILE).read_text())
    values["new"] = values["status"]["new"] = values["status"]["clients"]["new"] = 1
    (tmp_path / STATUS_FILE).write_text(json.dumps(values))
    assert read_status(tmp_path) is not None


def test_a_running_process_is_alive_and_a_dead_or_finished_one_is_not(tmp_path):
    StatusFile(tmp_path).write(STATUS)
    found = read_status(tmp_path)
    assert found is not None
    later = found.updated + 3600
    assert found.is_alive(later)  # the process of this test
    assert not replace(found, pid=2**22 + 1).is_alive(later)
    assert replace(found, pid=2**22 + 1).is_alive(found.updated + 1)  # in another container
    assert not replace(found, host="elsewhere").is_alive(later)
    for state in (STOPPED, FINISHED):
        assert not replace(found, state=state).is_alive(found.updated)


def test_the_remaining_time_counts_only_iterations_of_this_process(tmp_path):
    file = StatusFile(tmp_path)
    file.start(20)
    file.write(STATUS)
    found = read_status(tmp_path)
    assert found is not None
    found = replace(found, started=1000.0, updated=1010.0)
    assert found.remaining_seconds(100) == 30.0  # 20 iterations in 10 s, 60 to go
    assert found.remaining_seconds(None) is None
    assert replace(found, started_iteration=40).remaining_seconds(100) is None
