"""Files that are whole whenever they are there, and directories that one process has at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

if sys.platform != "win32":
    import fcntl


def write_whole(path: Path, chunks: Iterable[bytes], *, alone: bool = True) -> int:
    """Put a file in the place of another, synced, in one step; the bytes it has.

    Who is not ``alone`` in writing it has a draft of its own, which a kill leaves behind for good.
    """
    draft = path.with_name(f"{path.name}{'' if alone else f'.{os.getpid()}'}.draft")
    try:
        with draft.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # as where the disk is full
            error.filename = str(path)
        raise
    sync_directory(path.parent)
    return size


def sync_directory(path: Path) -> None:
    """Make renames inside a directory survive a power cut."""
    if os.name == "nt":
        return  # a directory cannot be opened there, and need not be
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Lock:
    """A directory, until it is closed or the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / "lock").open("a+b")
        if sys.platform == "win32":
            return  # nothing keeps a second process out there
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether the directory has been given up."""
        return self._file.closed

    def close(self) -> None:
        """Let another process have the directory."""
        if sys.platform != "win32" and not self._file.closed:
            # Closing is not enough: a process that was forked meanwhile has the file open, too.
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()
