"""Atomic file replacement and exclusive locks on directories."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout

from fedtern.core.errors import LockedError


def write_atomic(
    path: Path,
    chunks: Iterable[bytes | memoryview],
    *,
    concurrent: bool = False,
    private: bool = False,
    sync_name: bool = True,
) -> int:
    """Replace a file in one step, so that readers see the old content or the new, never a part.

    The content is written to a draft next to ``path``, synced to the disk and renamed.

    Args:
        path: the file to create or replace.
        chunks: the content, written in order.
        concurrent: whether other processes may write the same path at the same time. Each then
            writes its own draft; a killed process leaves its draft behind.
        private: whether only the owner may read the file.
        sync_name: whether to sync the directory, too. If not, the caller does this later.

    Returns:
        The size of the file in bytes.

    Raises:
        OSError: the file cannot be written; a previous file at ``path`` is unchanged.

    """
    suffix = f".{os.getpid()}.draft" if concurrent else ".draft"
    draft = path.with_name(path.name + suffix)
    try:
        with open(draft, "wb", opener=_open_private if private else None) as file:
            for chunk in chunks:
                file.write(chunk)
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        # Errors of a full disk come without a file name.
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    if sync_name:
        sync_directory(path.parent)
    return size


def _open_private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    restrict_access(Path(path))  # an existing draft keeps its permissions
    return descriptor


def restrict_access(path: Path) -> None:
    """Let only the owner read and write a file."""
    if os.name != "nt":  # Windows has no such permissions; a file has those of its directory
        path.chmod(0o600)


def sync_directory(path: Path) -> None:
    """Sync a directory to the disk, so that renames in it survive a power failure."""
    if os.name == "nt":
        return  # Windows cannot open a directory as a file, and does not need this
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Lock:
    """Exclusive lock on a directory.

    The operating system releases the lock when the process ends, even if it is killed. The file
    that carries the lock stays behind; its presence alone locks nothing. A forked child does not
    inherit the lock.

    Args:
        directory: an existing directory; the lock is a file named ``lock`` in it.

    Raises:
        LockedError: another process, or another ``Lock`` in this process, holds the lock.
        OSError: the file cannot be opened, or the file system does not support locks.

    """

    def __init__(self, directory: Path) -> None:
        self._lock = FileLock(
            directory / "lock",
            timeout=0,
            mode=0o600,
            thread_local=False,  # one thread may open a store and another close it
            # A soft lock is a file that exists: after a kill it would lock the directory for good.
            fallback_to_soft=False,
        )
        try:
            self._lock.acquire()
        except Timeout:
            raise LockedError(
                f"{directory} is locked by another process; stop that process or wait for it"
            ) from None

    @property
    def closed(self) -> bool:
        """Whether the lock has been released."""
        return not self._lock.is_locked

    def close(self) -> None:
        """Release the lock. Closing twice does nothing."""
        self._lock.release()
