"""Files that are whole whenever they are there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, chunks: Iterable[bytes]) -> int:
    """Put a file in the place of another, synced, in one step; the bytes it has."""
    draft = path.with_name(f"{path.name}.draft")
    with draft.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
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
