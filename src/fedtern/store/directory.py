"""A directory that holds one state: its last snapshot and what happened since.

``00000003.safetensors`` is a state, ``00000003.log`` what happened to it afterwards. A snapshot
that the log before it leads to gets the next number; the one before is kept until the next but one,
so that a damaged snapshot can be worked out again. One that no log leads to leaves a number out:
there is no way to it from those before, which are removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from fedtern.core.errors import DecodeError, FedternError, StoreError
from fedtern.core.snapshot import Snapshot
from fedtern.store.files import Lock, sync_directory, write_atomic
from fedtern.store.log import REMEDY, Log

T = TypeVar("T")


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
            # What a client has learned is nobody else's business.
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            sync_directory(self.path.parent)
            self._lock = Lock(self.path)
            with suppress(OSError):  # what a killed process was writing is in nobody's way
                for draft in self.path.glob("*.draft"):
                    draft.unlink()

    def recover(self, state: Recoverable) -> bool:
        """Bring a state back to where it was last seen; False, and a first snapshot, if never."""
        self.check()
        with self._errors("read"):
            generations = self._generations()
        if not generations:
            with self._errors("write"):
                self._write_snapshot(0, state.snapshot())
            return False
        with self._errors("read"):
            start = self._restore_newest(state, generations)
            for generation in range(start, generations[0] + 1):
                self._replay(state, generation)
        return True

    def _generations(self) -> list[int]:
        """The numbers of the snapshots there are, or should be, newest first."""
        # A log is made after its snapshot: where it is alone, the snapshot has been lost.
        paths = [*self.path.glob("*.safetensors"), *self.path.glob("*.log")]
        return sorted({int(path.stem) for path in paths if path.stem.isdecimal()}, reverse=True)

    def _restore_newest(self, state: Recoverable, generations: list[int]) -> int:
        damage = []
        # Only as far back as a log leads forward again: what an upload took out of a residual is
        # still in every snapshot from before it, and would be sent twice.
        for back, generation in enumerate(generations):
            if generation != generations[0] - back:
                break
            path = self._file(generation, "safetensors")
            try:
                data = path.read_bytes()
                state.restore(Snapshot.from_bytes(data))
            except FileNotFoundError:
                damage.append(f"{path} is missing")
            except (DecodeError, KeyError, TypeError) as error:
                damage.append(f"{path}: {error}")
            except ValueError as error:
                raise StoreError(f"{path} belongs to something else: {error}") from error
            else:
                self._snapshot_bytes = len(data)
                return generation
        raise StoreError(f"{'; '.join(damage)}; {REMEDY}")

    def clear(self) -> None:
        """Remove what is there, readable or not: the next recovery is a beginning."""
        with self._errors("clear"):
            self._close_log()
            # The oldest first: cut short, it must not bring an older state back.
            for generation in reversed(self._generations()):
                for kind in ("safetensors", "log"):
                    self._file(generation, kind).unlink(missing_ok=True)
            sync_directory(self.path)
        self._failed = None

    def _replay(self, state: Recoverable, generation: int) -> None:
        self._close_log()
        self._log = Log(self._file(generation, "log"))
        sync_directory(self.path)
        self.torn += self._log.torn
        for record in self._log.records():
            try:
                state.replay(record)
            except FedternError as error:
                raise StoreError(f"{self._log.path} does not fit its snapshot: {error}") from error

    def record(
        self, change: Callable[[], T], describe: Callable[[T], bytes | None], *, sync: bool
    ) -> T:
        """Make a change and write down what it was; with ``sync`` even through a power cut."""
        with self._changing(change) as result:
            if (described := describe(result)) is not None:
                self._open_log().append(described, sync=sync)
        return result

    def record_all(self, change: Callable[[], T], state: Recoverable) -> T:
        """Make a change and write down all there is after it, through a power cut."""
        with self._changing(change) as result:
            self._replace_snapshot(state.snapshot(), logged=False)
        return result

    @contextmanager
    def _changing(self, change: Callable[[], T]) -> Iterator[T]:
        """Make a change and let it be written down.

        A change that is refused with an error of ours, or for its arguments, has not happened.
        Anything else that keeps it from being written down, Ctrl-C included, leaves a state that
        is not on disk: from then on the store refuses to go on.
        """
        self.check()
        self._failed = InterruptedError("a change was interrupted before it was written down")
        try:
            result = change()
        except (FedternError, ValueError, TypeError):
            self._failed = None
            raise
        with self._errors("write"):
            yield result
        self._failed = None

    @property
    def wants_snapshot(self) -> bool:
        """Whether replaying the log would by now cost more than reading a new snapshot."""
        limit = self.log_bytes
        if limit is None:
            limit = max(self._snapshot_bytes, 1 << 20)
        return self._open_log().nbytes > limit

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Put a new snapshot in the place of the old one and its log."""
        with self._changing(lambda: None):
            self._replace_snapshot(snapshot, logged=True)

    def _replace_snapshot(self, snapshot: Snapshot, *, logged: bool) -> None:
        """Write a snapshot and remove what is of no more use; ``logged`` if the log leads to it."""
        newest = max(self._generations(), default=0)
        number, kept = (newest + 1, newest) if logged else (newest + 2, newest + 2)
        self._write_snapshot(number, snapshot)
        for path in self.path.iterdir():
            if path.stem.isdecimal() and int(path.stem) < kept:
                path.unlink()

    def _write_snapshot(self, generation: int, snapshot: Snapshot) -> None:
        path = self._file(generation, "safetensors")
        self._snapshot_bytes = write_atomic(path, snapshot.chunks())
        self._close_log()
        self._log = Log(self._file(generation, "log"))
        sync_directory(self.path)

    def _open_log(self) -> Log:
        if self._log is None:
            raise StoreError(f"nothing was recovered from the store {self.path} yet")
        return self._log

    def _file(self, generation: int, kind: str) -> Path:
        return self.path / f"{generation:08d}.{kind}"

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn the system's errors into ours, and let nothing be written after a failure.

        What a failed write has left on disk is unknown: only a new start, which reads it back,
        can tell.
        """
        try:
            yield
        except StoreError as error:
            self._failed = error
            raise
        except OSError as error:
            self._failed = error
            raise StoreError(f"cannot {what} the store {self.path}: {error}") from error

    def check(self) -> None:
        """Refuse to go on after a failure, or on a store that is closed."""
        if self._lock.closed:
            raise StoreError(f"the store {self.path} is closed")
        if self._failed is not None:
            raise StoreError(
                f"the store {self.path} failed before ({self._failed}): start again to go on from"
                " what it holds"
            )

    def close(self) -> None:
        """Let another process have the directory."""
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
