"""A run's ``status.json``: the state of a run between two evaluations, for the live page.

The process that trains replaces the file at most twice per second. The file is not synced to the
disk and nothing resumes from it: a run without it is complete.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

STATUS_FILE = "status.json"
MOST_CLIENTS = 20
"""Clients that a list in the file names at most."""

RUNNING = "running"
STOPPED = "stopped"
FINISHED = "finished"
_HEARTBEAT_SECONDS = 10.0  # a file that was replaced since then is of a running process


@dataclass(frozen=True)
class Lag:
    """A client that is behind the server.

    Attributes:
        client: Number of the client.
        rounds: Rounds since the client had the server's weights.

    """

    client: int
    rounds: int


@dataclass(frozen=True)
class Clients:
    """Clients of the open or the last round. None means that the engine does not know.

    Attributes:
        total: Number of clients of the federation.
        cohort: Number of clients that were selected for the round.
        present: Number of clients that are connected.
        awaited: Number of selected clients that have not uploaded.
        waiting_for: The first of these.
        unresponsive: The first clients that were selected and did not upload in time.
        behind: Clients with the largest lag, the largest first.
        refused: Number of refused messages by reason.
        capped: Number of counted uploads whose influence was limited; None if unknown.

    """

    total: int | None = None
    cohort: int | None = None
    present: int | None = None
    awaited: int | None = None
    waiting_for: Sequence[int] = ()
    unresponsive: Sequence[int] = ()
    behind: Sequence[Lag] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    capped: int | None = None


@dataclass(frozen=True)
class Status:
    """State of a run at one time. Bytes are defined in ``fedtern.runs.metrics.Evaluation``.

    Attributes:
        iteration: Local iterations of a client that takes part in every round.
        round: Finished rounds.
        up_bytes: Bytes uploaded by all clients.
        down_bytes: Bytes downloaded by all clients.
        up_bytes_mean: Upload per participating client, summed over rounds.
        down_bytes_mean: Download per participating client, summed over rounds.
        activity: What the process does, such as "training".
        seconds: Seconds by phase.
        clients: Clients of the round.

    """

    iteration: int
    round: int
    up_bytes: int
    down_bytes: int
    up_bytes_mean: float
    down_bytes_mean: float
    activity: str = "training"
    seconds: Mapping[str, float] = field(default_factory=dict)
    clients: Clients = Clients()


@dataclass(frozen=True)
class RecordedStatus:
    """Content of a ``status.json``.

    Attributes:
        status: The state.
        state: ``RUNNING``, ``STOPPED`` or ``FINISHED``, as the process wrote it.
        updated: Time of the state, in seconds since 1970.
        started: Time at which the process started to train.
        started_iteration: Iteration at which it started.
        pid: Process id.
        host: Name of its machine.

    """

    status: Status
    state: str
    updated: float
    started: float
    started_iteration: int
    pid: int
    host: str

    def is_alive(self, now: float) -> bool:
        """Return whether the process that wrote the file still trains."""
        if self.state != RUNNING:
            return False
        if now - self.updated < _HEARTBEAT_SECONDS:
            return True
        return self.host == socket.gethostname() and _exists(self.pid)

    def remaining_seconds(self, iterations: int | None) -> float | None:
        """Return an estimate of the time to the last iteration; None if there is none."""
        done = self.status.iteration - self.started_iteration
        if not iterations or done <= 0:
            return None
        left = max(iterations - self.status.iteration, 0)
        return left * (self.updated - self.started) / done


class StatusFile:
    """Writer of a ``status.json``.

    Args:
        directory: The run directory.
        interval: Least time between two writes in seconds.

    """

    def __init__(self, directory: Path, interval: float = 0.5) -> None:
        self.path = directory / STATUS_FILE
        self.interval = interval
        self._next = 0.0  # of the monotonic clock
        self._began: tuple[float, int] | None = None

    def start(self, iteration: int) -> None:
        """Start the clock of the estimate of the remaining time."""
        self._began = (time.time(), iteration)

    def update(self, status: Callable[[], Status]) -> None:
        """Write the state, unless the last write was less than ``interval`` ago.

        Args:
            status: Returns the state; called only if it is written.

        """
        if time.monotonic() >= self._next:
            self.write(status())

    def write(self, status: Status, state: str = RUNNING) -> None:
        """Write the state. A file that cannot be written is no reason to stop the training."""
        if self._began is None:
            self.start(status.iteration)
        assert self._began is not None
        began, iteration = self._began
        record = RecordedStatus(
            status, state, time.time(), began, iteration, os.getpid(), socket.gethostname()
        )
        draft = self.path.with_name(f"{STATUS_FILE}.draft")
        with suppress(OSError):
            draft.write_text(json.dumps(asdict(record)), encoding="utf-8")
            draft.replace(self.path)
        self._next = time.monotonic() + self.interval


def read_status(directory: Path) -> RecordedStatus | None:
    """Read the ``status.json`` of a run directory; None if it is missing or unusable."""
    try:
        values = json.loads((directory / STATUS_FILE).read_text(encoding="utf-8"))
        own = _known(Status, values.pop("status"))
        clients = _known(Clients, own.pop("clients"))
        clients["behind"] = tuple(Lag(**lag) for lag in clients.get("behind", ()))
        status = Status(**own, clients=Clients(**clients))
        return RecordedStatus(**{**_known(RecordedStatus, values), "status": status})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that this version knows; a later version may write more."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user
        return True
    return True
