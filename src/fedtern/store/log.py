"""A file that records are appended to, and that survives being cut off anywhere.

``magic | (length | crc32 | record)*``, numbers as four bytes, little-endian. The top bit of a
length says that the record was synced when it was written, and with it all before it. The
checksum covers the length too, so that a run of zeros is not a record.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from fedtern.errors import StoreError
from fedtern.wire import u32

_MAGIC = b"FTLOG\x01\r\n"
_HEAD = 8
_SYNCED = 1 << 31


class Log:
    """An open log, positioned behind its last whole record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        size = os.fstat(self._file).st_size
        if size < len(_MAGIC):  # new, or cut off before anything was written to it
            os.truncate(path, 0)
            self.nbytes = self.torn = 0
            self._write(_MAGIC)
            return
        if self._read(0, len(_MAGIC)) != _MAGIC:
            raise StoreError(f"{path} is not a log of this package, or its head is damaged")
        self.nbytes = len(_MAGIC) + sum(_HEAD + len(record) for record in self.records())
        self.torn = size - self.nbytes  # bytes of unfinished records
        self._refuse_damage()
        os.truncate(path, self.nbytes)

    def _refuse_damage(self) -> None:
        """Tell an unfinished write, which may be cut off, from damage to what was finished."""
        rest = self._read(self.nbytes, self.torn)
        for at in range(len(rest)):
            if (found := _parse(rest, at)) is not None and found[1]:
                raise StoreError(
                    f"{self.path} is damaged at byte {self.nbytes}, before records that were safely"
                    " written: restore the directory from a backup, or remove this file to go on"
                    " from the last snapshot"
                )

    def records(self) -> Iterator[bytes]:
        """Every whole record from the first on."""
        at = len(_MAGIC)
        while len(head := self._read(at, _HEAD)) == _HEAD:
            length = int.from_bytes(head[:4], "little") & ~_SYNCED
            found = _parse(head + self._read(at + _HEAD, length), 0)
            if found is None:
                return
            yield found[0]
            at += _HEAD + length

    def append(self, record: bytes, *, sync: bool) -> None:
        """Write a record behind the others; with ``sync`` it survives even a power cut."""
        if len(record) >= _SYNCED:
            raise StoreError(f"a record of {len(record)} bytes is too long for {self.path}")
        length = u32(len(record) | (_SYNCED if sync else 0))
        self._write(length + u32(zlib.crc32(record, zlib.crc32(length))) + record)
        if sync:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, at: int, count: int) -> bytes:
        os.lseek(self._file, at, os.SEEK_SET)
        parts = []
        while count and (part := os.read(self._file, count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _write(self, data: bytes) -> None:
        os.lseek(self._file, self.nbytes, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        self.nbytes += len(data)


def _parse(data: bytes, at: int) -> tuple[bytes, bool] | None:
    """The record that starts at a byte, and whether it was synced; None where none starts."""
    head = data[at : at + _HEAD]
    length = int.from_bytes(head[:4], "little")
    synced, length = bool(length & _SYNCED), length & ~_SYNCED
    if len(head) < _HEAD or len(data) - at - _HEAD < length:
        return None
    record = data[at + _HEAD : at + _HEAD + length]
    crc = zlib.crc32(record, zlib.crc32(head[:4]))
    return (record, synced) if crc == int.from_bytes(head[4:], "little") else None
