"""Store: a directory with the last snapshot of a state and a log of the changes since.

``00000003.safetensors`` is a snapshot, ``00000003.log`` the changes after it. If the log leads to
the next snapshot, that one gets the next number, and the previous snapshot is kept: if the new one
is damaged, it can be recomputed from the previous one and its log. If no log leads to the next
snapshot, a number is skipped and all previous snapshots are removed, because they cannot be
brought up to date.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from fedtern.core.errors import DecodeError, FedternError, StoreError
from fedtern.core.snapshot import Snapshot
from fedtern.store.files import Lock, sync_directory, write_atomic
from fedtern.store.log import DAMAGE_ADVICE, Log

T = TypeVar("T")


class Recoverable(Protocol):
    """A state that a store can save and recover."""

    def snapshot(self, *, copy: bool = True) -> Snapshot:
        """Return the whole state; without a copy, until it changes."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the whole state by that of a snapshot."""
        ...

    def replay(self, record: bytes) -> None:
        """Repeat the change of a record."""
        ...


class Store:
    """One state on disk, open in one process at a time.

    Args:
        path: the directory, for this store only; it is created if it does not exist.
        log_bytes: the size of the log at which a new snapshot is due; by default the size of the
            last snapshot, and at least 1 MiB.
        mapped: whether to map the snapshot into memory instead of reading it. This is faster for a
            process that ends soon. The disk keeps the space of a replaced snapshot until then.

    Attributes:
        dropped_bytes: the size of an incomplete record that was cut off during recovery.

    Raises:
        LockedError: the directory is locked by another process.
        StoreError: the directory cannot be created or written.

    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        log_bytes: int | None = None,
        *,
        mapped: bool = False,
    ) -> None:
        self.path = Path(path)
        self.log_bytes = log_bytes
        self.mapped = mapped
        self.dropped_bytes = 0
        self._log: Log | None = None
        self._failure: OSError | None = None
        self._snapshot_bytes = 0
        with self._convert_errors("open"):
            # Only the owner can read it: residuals contain information about private data.
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            sync_directory(self.path.parent)
            self._lock = Lock(self.path)
            with suppress(OSError):  # drafts of a killed process do no harm
                for draft in self.path.glob("*.draft"):
                    draft.unlink()

    def recover(self, state: Recoverable) -> bool:
        """Bring a state back to its last recorded change.

        Returns:
            Whether there was a recorded state. If not, a first snapshot is written.

        Raises:
            StoreError: the store is damaged, or belongs to another state.

        """
        self.check()
        with self._convert_errors("read"):
            generations = self._generations()
        if not generations:
            with self._convert_errors("write"):
                self._write_snapshot(0, state.snapshot(copy=False))
            return False
        with self._convert_errors("read"):
            start = self._restore_newest(state, generations)
            for generation in range(start, generations[0] + 1):
                self._replay_log(state, generation)
        return True

    def _generations(self) -> list[int]:
        """Return the numbers of the snapshots, newest first, including missing ones."""
        # A log is created after its snapshot. A log without a snapshot means that it was lost.
        paths = [*self.path.glob("*.safetensors"), *self.path.glob("*.log")]
        return sorted({int(path.stem) for path in paths if path.stem.isdecimal()}, reverse=True)

    def _restore_newest(self, state: Recoverable, generations: list[int]) -> int:
        """Restore the newest readable snapshot and return its number."""
        damage = []
        # Go back only as far as logs lead forward again. An older snapshot of a client still has
        # the values in its residual that later uploads contained, and would send them twice.
        for back, generation in enumerate(generations):
            if generation != generations[0] - back:
                break
            path = self._file(generation, "safetensors")
            try:
                data = _read_file(path, mapped=self.mapped)
                state.restore(Snapshot.from_bytes(data))
            except FileNotFoundError:
                damage.append(f"{path} is missing")
            except (DecodeError, KeyError, TypeError) as error:
                damage.append(f"{path}: {error}")
            except ValueError as error:
                raise StoreError(
                    f"{path} belongs to another state: {error}; use another directory"
                ) from error
            else:
                self._snapshot_bytes = len(data)
                return generation
        raise StoreError(f"{'; '.join(damage)}; {DAMAGE_ADVICE}")

    def clear(self) -> None:
        """Remove all snapshots and logs, even damaged ones."""
        with self._convert_errors("clear"):
            self._close_log()
            # The oldest first: if this is interrupted, no older state must be recovered later.
            for generation in reversed(self._generations()):
                for kind in ("safetensors", "log"):
                    self._file(generation, kind).unlink(missing_ok=True)
            sync_directory(self.path)
        self._failure = None

    def _replay_log(self, state: Recoverable, generation: int) -> None:
        self._close_log()
        self._log = Log(self._file(generation, "log"))
        sync_directory(self.path)
        self.dropped_bytes += self._log.dropped_bytes
        for record in self._log.records():
            try:
                state.replay(record)
            except FedternError as error:
                raise StoreError(
                    f"{self._log.path} does not fit its snapshot: {error}; {DAMAGE_ADVICE}"
                ) from error

    def record(
        self, change: Callable[[], T], describe: Callable[[T], bytes | None], *, sync: bool
    ) -> T:
        """Make a change and append its record to the log.

        Args:
            change: makes the change.
            describe: returns the record of the change, given its result; None if nothing changed.
            sync: whether the record must survive a power failure, and not only a kill.

        Returns:
            The result of the change.

        """
        with self._changing(change) as result:
            described = describe(result)
            if described is not None:
                self._open_log().append(described, sync=sync)
        return result

    def append(self, record: bytes) -> None:
        """Append the record of a change that has been made; it survives a kill of the process."""
        with self._changing(lambda: None):
            self._open_log().append(record, sync=False)

    def record_snapshot(self, change: Callable[[], T], state: Recoverable) -> T:
        """Make a change and write a snapshot of the state after it, which survives a power failure.

        Returns:
            The result of the change.

        """
        with self._changing(change) as result:
            self._replace_snapshot(state.snapshot(copy=False), logged=False)
        return result

    @contextmanager
    def _changing(self, change: Callable[[], T]) -> Iterator[T]:
        """Make a change, and run the body, which records it.

        A change that raises one of our errors, or an error about its arguments, has not happened.
        Any other exception, including Ctrl-C, can leave a change that is not on disk. The store
        then refuses all further calls.
        """
        self.check()
        self._failure = InterruptedError("a change was interrupted before it was recorded")
        try:
            result = change()
        except (FedternError, ValueError, TypeError):
            self._failure = None
            raise
        with self._convert_errors("write"):
            yield result
        self._failure = None

    @property
    def largest_log(self) -> int:
        """The size of the log, in bytes, at which a new snapshot is due."""
        if self.log_bytes is not None:
            return self.log_bytes
        return max(self._snapshot_bytes, 1 << 20)

    @property
    def snapshot_is_due(self) -> bool:
        """Whether replaying the log would take longer than reading a new snapshot."""
        return self._open_log().nbytes > self.largest_log

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Replace the last snapshot and its log by a new snapshot of the same state."""
        with self._changing(lambda: None):
            self._replace_snapshot(snapshot, logged=True)

    def _replace_snapshot(self, snapshot: Snapshot, *, logged: bool) -> None:
        """Write a snapshot and remove older files; ``logged`` if the log leads to it."""
        newest = max(self._generations(), default=0)
        if logged:
            number = newest + 1
            oldest_kept = newest
        else:
            number = newest + 2
            oldest_kept = number
        self._write_snapshot(number, snapshot)
        for path in self.path.iterdir():
            if path.stem.isdecimal() and int(path.stem) < oldest_kept:
                path.unlink()

    def _write_snapshot(self, generation: int, snapshot: Snapshot) -> None:
        path = self._file(generation, "safetensors")
        self._snapshot_bytes = write_atomic(path, snapshot.chunks())
        self._close_log()
        self._log = Log(self._file(generation, "log"))
        sync_directory(self.path)

    def _open_log(self) -> Log:
        if self._log is None:
            raise StoreError(f"the store {self.path} is not open for changes; call recover first")
        return self._log

    def _file(self, generation: int, kind: str) -> Path:
        return self.path / f"{generation:08d}.{kind}"

    @contextmanager
    def _convert_errors(self, action: str) -> Iterator[None]:
        """Convert errors of the operating system to ``StoreError``, and stop after a failure.

        After a failed write, the content of the disk is unknown. Only a new process, which reads
        it again, can continue.
        """
        try:
            yield
        except StoreError as error:
            self._failure = error
            raise
        except OSError as error:
            self._failure = error
            raise StoreError(f"cannot {action} the store {self.path}: {error}") from error

    def check(self) -> None:
        """Raise a ``StoreError`` if the store is closed or has failed."""
        if self._lock.closed:
            raise StoreError(f"the store {self.path} is closed")
        if self._failure is not None:
            raise StoreError(
                f"the store {self.path} has failed ({self._failure}); open it again to continue"
                " from the last recorded change"
            )

    def close(self) -> None:
        """Close the store, so that another process can open it."""
        self._close_log()
        self._lock.close()

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _read_file(path: Path, *, mapped: bool) -> memoryview:
    """Return the bytes of a file in writable memory, which a state can use without a copy.

    Args:
        path: the file; changes of the memory do not change it.
        mapped: whether to map the file into memory, where the system can do this.

    """
    with path.open("rb") as file:
        # Windows cannot remove a file that is mapped; an empty file cannot be mapped.
        if mapped and os.name == "posix" and os.fstat(file.fileno()).st_size:
            return memoryview(mmap(file.fileno(), 0, access=ACCESS_COPY))
        memory = np.empty(os.fstat(file.fileno()).st_size, np.uint8).data
        file.readinto(memory)
    return memory
