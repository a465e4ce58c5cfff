"""A file that records are appended to, and that survives being cut off anywhere.

``magic | commit | crc32 of commit | (length | crc32 | record)*``, little-endian. ``commit`` (eight
bytes) is where the file ended when it was last known to be safe on the disk: what is unreadable
behind it is a write that was cut off, before it damage. A record's checksum covers its length.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from fedtern.core.errors import StoreError
from fedtern.core.wire import u32

REMEDY = (
    "restore a server's directory from a backup, but remove a client's: it begins again with an"
    " empty residual"
)
_MAGIC = b"FTLOG\x01\r\n"
_START = len(_MAGIC) + 12
_HEAD = 8


class Log:
    """An open log, positioned behind its last whole record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        self.torn = 0  # bytes of unfinished records that opening has cut off
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        size, head = os.fstat(self._file).st_size, self._read(0, _START)
        # New, or cut off before anything of it was on the disk, whatever its length.
        if size < _START or not (any(head) or any(self._read(0, size))):
            os.truncate(self.path, 0)
            self._write(0, _MAGIC + _commit(_START))
            self.nbytes = self._safe = _START
            return
        if not head.startswith(_MAGIC):
            raise StoreError(
                f"{self.path} is not a log of this package, or its head is damaged; {REMEDY}"
            )
        self.nbytes = _START + sum(_HEAD + len(record) for record in self.records())
        self._refuse_damage()
        self.torn = size - self.nbytes
        os.truncate(self.path, self.nbytes)
        # What was read may have come from memory: the next commit says that it is on the disk.
        os.fsync(self._file)
        self._safe = self.nbytes

    def _refuse_damage(self) -> None:
        """Tell an unfinished write, which may be cut off, from damage to what was finished."""
        head = self._read(len(_MAGIC), 12)
        commit = int.from_bytes(head[:8], "little")
        if _commit(commit) == head and self.nbytes < commit:
            raise StoreError(
                f"{self.path} is damaged at byte {self.nbytes}, and was safely written up to byte"
                f" {commit}; {REMEDY}"
            )

    def records(self) -> Iterator[bytes]:
        """Every whole record from the first on."""
        at = _START
        while len(head := self._read(at, _HEAD)) == _HEAD:
            length = int.from_bytes(head[:4], "little")
            record = self._read(at + _HEAD, length)
            if len(record) < length or head != _head(record):
                return
            yield record
            at += _HEAD + length

    def append(self, record: bytes, *, sync: bool) -> None:
        """Write a record behind the others; with ``sync`` it survives even a power cut."""
        if len(record) >= 1 << 32:
            raise StoreError(f"a record of {len(record)} bytes is too long for {self.path}")
        self._write(self.nbytes, _head(record) + record)
        self.nbytes += _HEAD + len(record)
        if sync:
            # Not yet the end of this record: that is safe only once the call below returns.
            self._write(len(_MAGIC), _commit(self._safe))
            os.fsync(self._file)
            self._safe = self.nbytes

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, at: int, count: int) -> bytes:
        os.lseek(self._file, at, os.SEEK_SET)
        parts = []
        while count and (part := os.read(self._file, min(count, 1 << 24))):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _write(self, at: int, data: bytes) -> None:
        os.lseek(self._file, at, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]


def _head(record: bytes) -> bytes:
    length = u32(len(record))
    return length + u32(zlib.crc32(record, zlib.crc32(length)))


def _commit(end: int) -> bytes:
    number = end.to_bytes(8, "little")
    return number + u32(zlib.crc32(number))
