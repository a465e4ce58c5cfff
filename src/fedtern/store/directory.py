"""Store: a directory with the last snapshot of a state and a log of the changes since.

``00000003.safetensors`` is a snapshot, ``00000003.log`` the changes after it. If the log leads to
the next snapshot, that one gets the next number, and the previous snapshot is kept: if the new one
is damaged, it can be recomputed from the previous one and its log. If no log leads to the next
snapshot, a number is skipped and all previous snapshots are removed, because they cannot be
brought up to date.

Every snapshot has a log, even an empty one. The log is written first, as a draft, and gets its name
after the snapshot: a snapshot without a log or a draft has lost it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from fedtern.core.errors import DamagedStoreError, DecodeError, FedternError, StoreError
from fedtern.core.snapshot import Snapshot
from fedtern.store.files import Lock, restrict_access, sync_directory, write_atomic
from fedtern.store.log import DAMAGE_ADVICE, Log, create_log, draft_of

logger = logging.getLogger("fedtern.store")
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
        accept_loss: whether to continue without data that was damaged or lost, instead of raising
            an error. Damaged files are kept under another name.

    Attributes:
        dropped_bytes: the size of an incomplete record that was cut off during recovery.
        losses: damage that was accepted during recovery, each as a sentence.

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
        accept_loss: bool = False,
    ) -> None:
        self.path = Path(path)
        self.log_bytes = log_bytes
        self.mapped = mapped
        self.accept_loss = accept_loss
        self.dropped_bytes = 0
        self.losses: list[str] = []
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
            with suppress(OSError):  # files of another user
                for file in self._state_files():
                    restrict_access(file)

    def recover(self, state: Recoverable, *, can_restart: bool = False) -> bool:
        """Bring a state back to its last recorded change.

        Args:
            state: a new state.
            can_restart: whether a state without any readable snapshot may begin anew, if the loss
                is accepted.

        Returns:
            Whether there was a recorded state. If not, a first snapshot is written.

        Raises:
            DamagedStoreError: recorded changes are lost, and the loss was not accepted.
            StoreError: the store cannot be read, or belongs to another state.

        """
        self.check()
        with self._convert_errors("read"):
            generations = self._generations()
        if not generations:
            with self._convert_errors("write"):
                self._write_snapshot(0, state.snapshot(copy=False))
            return False
        with self._convert_errors("read"):
            self._finish_interrupted_snapshot()
            try:
                start = self._restore_newest(state, generations)
            except DamagedStoreError as error:
                if not (self.accept_loss and can_restart):
                    raise
                self._accept(f"{error.args[0]}; starting again")
                start = -1
            if start >= 0:
                self._replay_logs(state, start, generations[0])
                return True
        with self._convert_errors("write"):
            self._set_aside(0)
            self._write_snapshot(generations[0] + 2, state.snapshot(copy=False))
        return False

    def _replay_logs(self, state: Recoverable, start: int, newest: int) -> None:
        for generation in range(start, newest + 1):
            is_whole = self._replay_log(state, generation)
            if not is_whole and generation < newest:
                # Later logs do not continue this state.
                self._set_aside(generation + 1)
                break
            if is_whole and generation == newest and self._open_log().is_followed:
                loss = f"the snapshot after {self._open_log().path} is missing, with its log"
                if not self.accept_loss:
                    raise DamagedStoreError(f"{loss}; {DAMAGE_ADVICE}")
                self._accept(loss)
        if self.losses:
            self._replace_snapshot(state.snapshot(copy=False), logged=False)

    def _finish_interrupted_snapshot(self) -> None:
        """Give a log its name if the process was killed between snapshot and log."""
        for draft in sorted(self.path.glob("*.log.new")):
            log = draft.with_suffix("")
            if not log.exists() and log.with_suffix(".safetensors").exists():
                draft.replace(log)
                sync_directory(self.path)
            else:
                draft.unlink()

    def _accept(self, loss: str) -> None:
        self.losses.append(loss)
        logger.warning("accepted the loss of data: %s", loss)

    def _set_aside(self, first: int) -> None:
        """Rename all files from a generation on, so that they are not read again."""
        for path in self._state_files():
            if int(path.stem) >= first:
                path.replace(path.with_name(f"{path.name}.damaged"))
        sync_directory(self.path)

    def _state_files(self) -> list[Path]:
        """Return the snapshots and logs, sorted by generation."""
        paths = [*self.path.glob("*.safetensors"), *self.path.glob("*.log")]
        found = [path for path in paths if path.stem.isdecimal()]
        return sorted(found, key=lambda path: (int(path.stem), path.suffix))

    def _generations(self) -> list[int]:
        """Return the numbers of the snapshots, newest first, including missing ones."""
        # A log gets its name after its snapshot. A log without a snapshot means that it was lost.
        return sorted({int(path.stem) for path in self._state_files()}, reverse=True)

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
        raise DamagedStoreError(f"{'; '.join(damage)}; {DAMAGE_ADVICE}")

    def clear(self) -> None:
        """Remove all snapshots and logs, even damaged ones."""
        with self._convert_errors("clear"):
            self._close_log()
            # The oldest first: if this is interrupted, no older state must be recovered later.
            for generation in reversed(self._generations()):
                for kind in ("safetensors", "log", "log.new"):
                    self._file(generation, kind).unlink(missing_ok=True)
            sync_directory(self.path)
        self._failure = None

    def _replay_log(self, state: Recoverable, generation: int) -> bool:
        """Replay a log, which stays open; return whether nothing of it is lost."""
        self._close_log()
        log = Log(self._file(generation, "log"), accept_loss=self.accept_loss)
        self._log = log
        self.dropped_bytes += log.dropped_bytes
        if log.loss is not None:
            self._accept(log.loss)
        if log.note is not None:
            logger.warning("%s; they were not acknowledged as synced", log.note)
        for record in log.records():
            try:
                state.replay(record)
            except FedternError as error:
                loss = f"{log.path} does not fit its snapshot: {error}"
                if not self.accept_loss:
                    raise DamagedStoreError(f"{loss}; {DAMAGE_ADVICE}") from error
                self._accept(loss)
                return False
        return log.loss is None

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
        """The size of the log's records, in bytes, at which a new snapshot is due."""
        if self.log_bytes is not None:
            return self.log_bytes
        return max(self._snapshot_bytes, 1 << 20)

    @property
    def snapshot_is_due(self) -> bool:
        """Whether replaying the log would take longer than reading a new snapshot."""
        return self._open_log().record_bytes > self.largest_log

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
        self._write_snapshot(number, snapshot, logged=logged)
        for path in self._state_files():
            if int(path.stem) < oldest_kept:
                path.unlink()

    def _write_snapshot(self, generation: int, snapshot: Snapshot, *, logged: bool = False) -> None:
        path = self._file(generation, "safetensors")
        log = self._file(generation, "log")
        create_log(log)
        # One sync of the directory for both names: file systems with a journal keep their order.
        self._snapshot_bytes = write_atomic(path, snapshot.chunks(), private=True, sync_name=False)
        draft_of(log).replace(log)
        sync_directory(self.path)
        if self._log is not None and logged:
            self._log.sync(is_followed=True)
        self._close_log(sync=logged)
        self._log = Log(log)

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
        try:
            with self._convert_errors("close"):
                self._close_log(sync=self._failure is None)
        finally:
            self._lock.close()

    def _close_log(self, *, sync: bool = True) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close(sync=sync)

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
