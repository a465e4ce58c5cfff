"""A directory that holds one state: its last snapshot and what happened since.

``00000003.safetensors`` is a state, ``00000003.log`` what happened to it afterwards. A new
snapshot gets the next number; the one before it, and its log, are kept until the next but one,
so that a damaged snapshot can be worked out again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

from fedtern.errors import DecodeError, FedternError, StoreError
from fedtern.files import sync_directory, write_whole
from fedtern.snapshot import Snapshot
from fedtern.store.log import Log

if sys.platform != "win32":
    import fcntl


class Recoverable(Protocol):
    """What a store can bring back."""

    def snapshot(self) -> Snapshot:
        """Everything there is to know."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Become what the snapshot was taken of."""
        ...

    def replay(self, record: bytes) -> None:
        """Do again what a record says was done."""
        ...


class Store:
    """One state on disk, open in one process at a time.

    Args:
        path: a directory of its own; it is made where it does not exist.
        log_bytes: how long the log may grow before it is worth a new snapshot; by default as
            long as the snapshot itself, and at least 1 MiB.

    """

    def __init__(self, path: str | os.PathLike[str], log_bytes: int | None = None) -> None:
        self.path = Path(path)
        self.log_bytes = log_bytes
        self.torn = 0  # bytes of an unfinished record that recovery has cut off
        self._log: Log | None = None
        self._failed: OSError | None = None
        self._snapshot_bytes = 0
        with self._errors("open"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("a+b")
            self._take_lock()

    def _take_lock(self) -> None:
        if sys.platform == "win32":
            return  # nothing keeps a second process out there
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise StoreError(f"the store {self.path} is in use by another process") from None

    def recover(self, state: Recoverable) -> bool:
        """Bring a state back to where it was last seen; False, and a first snapshot, if never."""
        with self._errors("read"):
            generations = self._generations()
            if not generations:
                self._write_snapshot(0, state.snapshot())
                return False
            start = self._restore_newest(state, generations)
            for generation in range(start, generations[0] + 1):
                self._replay(state, generation)
        return True

    def _generations(self) -> list[int]:
        """The numbers of the snapshots there are, newest first."""
        names = (p.stem for p in self.path.glob("*.safetensors"))
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def _restore_newest(self, state: Recoverable, generations: list[int]) -> int:
        damage = []
        for generation in generations:
            path = self._file(generation, "safetensors")
            data = path.read_bytes()
            try:
                snapshot = Snapshot.from_bytes(data)
            except DecodeError as error:
                damage.append(f"{path}: {error}")
                continue
            try:
                state.restore(snapshot)
            except ValueError as error:
                raise StoreError(f"{path} belongs to something else: {error}") from error
            self._snapshot_bytes = len(data)
            return generation
        raise StoreError("; ".join(damage) + "; restore the directory from a backup")

    def _replay(self, state: Recoverable, generation: int) -> None:
        if self._log is not None:
            self._log.close()
        self._log = Log(self._file(generation, "log"))
        self.torn += self._log.torn
        for record in self._log.records():
            try:
                state.replay(record)
            except FedternError as error:
                raise StoreError(f"{self._log.path} does not fit its snapshot: {error}") from error

    def append(self, record: bytes, *, sync: bool) -> None:
        """Remember what has happened; with ``sync`` even through a power cut."""
        with self._errors("write"):
            self._open_log().append(record, sync=sync)

    @property
    def wants_snapshot(self) -> bool:
        """Whether replaying the log would by now cost more than reading a new snapshot."""
        limit = self.log_bytes
        if limit is None:
            limit = max(self._snapshot_bytes, 1 << 20)
        return self._open_log().nbytes > limit

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Put a new snapshot in the place of the old one and its log."""
        with self._errors("write"):
            newest = self._generations()[0]
            self._write_snapshot(newest + 1, snapshot)
            for old in range(newest):
                for kind in ("safetensors", "log"):
                    self._file(old, kind).unlink(missing_ok=True)

    def _write_snapshot(self, generation: int, snapshot: Snapshot) -> None:
        path = self._file(generation, "safetensors")
        self._snapshot_bytes = write_whole(path, snapshot.chunks())
        if self._log is not None:
            self._log.close()
        self._log = Log(self._file(generation, "log"))
        sync_directory(self.path)

    def _open_log(self) -> Log:
        if self._log is None:
            raise StoreError(f"the store {self.path} is closed, or nothing was recovered from it")
        return self._log

    def _file(self, generation: int, kind: str) -> Path:
        return self.path / f"{generation:08d}.{kind}"

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn the system's errors into ours, and let nothing be written after a failure.

        What a failed write has left on disk is unknown: only a new start, which reads it back,
        can tell.
        """
        self.check()
        try:
            yield
        except StoreError as error:
            self._failed = error
            raise
        except OSError as error:
            self._failed = error
            raise StoreError(f"cannot {what} the store {self.path}: {error}") from error

    def check(self) -> None:
        """Refuse to go on after a failure."""
        if self._failed is not None:
            raise StoreError(
                f"the store {self.path} failed before ({self._failed}): start again to go on from"
                " what it holds"
            )

    def close(self) -> None:
        """Let another process have the directory."""
        if self._log is not None:
            self._log.close()
            self._log = None
        self._lock.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
