"""Write-ahead log: a file of records that survives being cut off anywhere.

The format is ``magic | commit | crc32 of commit | (length | crc32 | record)*``, little-endian.
``commit`` (eight bytes) is the size of the file when it was last known to be synced. Unreadable
data after it comes from an interrupted write; unreadable data before it is damage. The checksum of
a record covers its length, too.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from fedtern.core.errors import StoreError
from fedtern.core.wire import u32

DAMAGE_ADVICE = (
    "restore a server's directory from a backup; delete a client's directory, and the client starts"
    " again with an empty residual"
)
_MAGIC = b"FTLOG\x01\r\n"
_COMMIT_BYTES = 12
_START = len(_MAGIC) + _COMMIT_BYTES
_RECORD_HEADER_BYTES = 8


class Log:
    """An open log. New records are appended after the last complete one.

    Args:
        path: the file; it is created if it does not exist.

    Attributes:
        nbytes: the size of the log.
        dropped_bytes: the size of the incomplete records that were cut off on opening.

    Raises:
        StoreError: the file is damaged or is not a log.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        self.dropped_bytes = 0
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        size = os.fstat(self._file).st_size
        head = self._read(0, _START)
        # A file of zeros was created, but none of its data reached the disk before a power failure.
        if size < _START or not (any(head) or any(self._read(0, size))):
            os.truncate(self.path, 0)
            self._write(0, _MAGIC + _encode_commit(_START))
            self.nbytes = _START
            self._synced_bytes = _START
            return
        if not head.startswith(_MAGIC):
            raise StoreError(
                f"{self.path} is not a log of fedtern, or its start is damaged; {DAMAGE_ADVICE}"
            )
        complete = sum(_RECORD_HEADER_BYTES + len(record) for record in self.records())
        self.nbytes = _START + complete
        self._check_damage()
        self.dropped_bytes = size - self.nbytes
        os.truncate(self.path, self.nbytes)
        # The records may have been read from the page cache. The next commit says that they are on
        # the disk.
        os.fsync(self._file)
        self._synced_bytes = self.nbytes

    def _check_damage(self) -> None:
        """Raise an error if synced records are unreadable; an interrupted write is no damage."""
        encoded = self._read(len(_MAGIC), _COMMIT_BYTES)
        commit = int.from_bytes(encoded[:8], "little")
        if _encode_commit(commit) == encoded and self.nbytes < commit:
            raise StoreError(
                f"{self.path} is damaged at byte {self.nbytes}, although it was synced up to byte"
                f" {commit}; {DAMAGE_ADVICE}"
            )

    def records(self) -> Iterator[bytes]:
        """Yield all complete records in order."""
        at = _START
        while len(header := self._read(at, _RECORD_HEADER_BYTES)) == _RECORD_HEADER_BYTES:
            length = int.from_bytes(header[:4], "little")
            record = self._read(at + _RECORD_HEADER_BYTES, length)
            if len(record) < length or header != _record_header(record):
                return
            yield record
            at += _RECORD_HEADER_BYTES + length

    def append(self, record: bytes, *, sync: bool) -> None:
        """Append a record.

        Args:
            record: the record.
            sync: whether the record must survive a power failure, and not only a kill.

        """
        if len(record) >= 1 << 32:
            raise StoreError(f"a record of {len(record)} bytes is too long for {self.path}")
        self._write(self.nbytes, _record_header(record) + record)
        self.nbytes += _RECORD_HEADER_BYTES + len(record)
        if sync:
            # The commit excludes this record, which is on the disk only after the call below.
            self._write(len(_MAGIC), _encode_commit(self._synced_bytes))
            os.fsync(self._file)
            self._synced_bytes = self.nbytes

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


def _record_header(record: bytes) -> bytes:
    length = u32(len(record))
    return length + u32(zlib.crc32(record, zlib.crc32(length)))


def _encode_commit(end: int) -> bytes:
    number = end.to_bytes(8, "little")
    return number + u32(zlib.crc32(number))
