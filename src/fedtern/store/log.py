r"""Write-ahead log: a file of records that knows which of them were acknowledged.

The format is ``magic | commit | commit | (length | checksum | record)*``, little-endian. The
checksum of a record covers the lengths and contents of all records up to this one.

A commit states the end of the last acknowledged record and the checksum there. It is written after
the record and before the caller continues, in turn to one of the two places, so that one of them is
always whole. Unreadable data after the commit comes from a write that was interrupted before it was
acknowledged. It is dropped. Unreadable data before the commit is damage, with one exception: a
power failure can lose data that was written, but not synced. A commit therefore also states the end
of the synced records, and the boot of the machine that wrote it. Without a reboot in between,
written data cannot get lost.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fedtern.core.errors import DamagedStoreError, StoreError
from fedtern.core.wire import u32

DAMAGE_ADVICE = (
    "restore a server's directory from a backup; delete a client's directory, and the client starts"
    " again with an empty residual; or continue without the lost data with --accept-loss"
    " (Store(accept_loss=True)). `fedtern store check` shows the extent of the damage"
)
_MAGIC = b"FTLOG\x02\r\n"
_FIRST_MAGIC = b"FTLOG\x01\r\n"  # of earlier versions, which had one commit and no chain
_FIRST_START = 20
_COMMIT = struct.Struct("<QQQIIQI")
_NUM_COMMITS = 2
_START = len(_MAGIC) + _NUM_COMMITS * _COMMIT.size
_RECORD_HEADER_BYTES = 8
_IS_FOLLOWED = 1  # flag of a log that a newer snapshot follows
_FLAG_BITS = 1
MAX_RECORDS = (1 << 31) - 1
"""The largest number of records in a log."""


@dataclass(frozen=True)
class Commit:
    """The state of a log when a change was acknowledged.

    Attributes:
        number: the number of commits before this one.
        end: the end of the last acknowledged record, in bytes.
        synced: the end of the last record that is known to be on the disk.
        count: the number of acknowledged records.
        chain: the checksum of the last acknowledged record.
        boot: identifies the boot of the machine; 0 if unknown.
        is_followed: whether a newer snapshot follows the log.

    """

    number: int
    end: int
    synced: int
    count: int
    chain: int
    boot: int
    is_followed: bool = False

    def to_bytes(self) -> bytes:
        """Encode the commit, with a checksum."""
        count = self.count << _FLAG_BITS | self.is_followed * _IS_FOLLOWED
        data = _COMMIT.pack(self.number, self.end, self.synced, count, self.chain, self.boot, 0)[
            :-4
        ]
        return data + u32(zlib.crc32(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> Commit | None:
        """Decode a commit; None if it is damaged."""
        if len(data) < _COMMIT.size or u32(zlib.crc32(data[:-4])) != data[-4:]:
            return None
        number, end, synced, count, chain, boot, _ = _COMMIT.unpack(data)
        is_followed = bool(count & _IS_FOLLOWED)
        return cls(number, end, synced, count >> _FLAG_BITS, chain, boot, is_followed)


class _Record(NamedTuple):
    """A readable record, with its end and its checksum."""

    data: bytes
    end: int
    chain: int


@dataclass(frozen=True)
class LogReport:
    """The condition of a log, without any change of the file.

    Attributes:
        path: the file.
        nbytes: its size.
        intact: the number of readable records.
        end: the end of the last readable record.
        commit: the newest readable commit; None if there is none.
        damage: what is damaged and lost; None if nothing is.
        note: a remark on an unacknowledged or unsynced rest that opening the log will drop.

    """

    path: Path
    nbytes: int
    intact: int
    end: int
    chain: int
    commit: Commit | None
    damage: str | None
    note: str | None


class Log:
    """An open log. New records are appended after the last complete one.

    Args:
        path: the file, which must exist; see ``create_log``.
        accept_loss: whether to cut off the log before the damage instead of raising an error. A
            copy of the damaged file is kept.

    Attributes:
        nbytes: the size of the log.
        dropped_bytes: the size of the records that were cut off on opening, because an interrupted
            write or a power failure had left them incomplete.
        loss: what is damaged and was cut off; None if nothing was.
        note: which unsynced records a power failure has lost; None if it has lost none.

    Raises:
        DamagedStoreError: acknowledged records are missing or unreadable, or the file is not a log.

    """

    def __init__(self, path: Path, *, accept_loss: bool = False) -> None:
        self.path = path
        flags = os.O_RDWR | getattr(os, "O_BINARY", 0)
        try:
            self._file = os.open(path, flags)
        except FileNotFoundError:
            self.loss: str | None = f"{path} is missing: all changes after its snapshot are lost"
            if not accept_loss:
                raise DamagedStoreError(f"{self.loss}; {DAMAGE_ADVICE}") from None
            create_log(path).replace(path)
            self._file = os.open(path, flags)
        else:
            self.loss = None
        self.dropped_bytes = 0
        try:
            self._open(accept_loss)
        except BaseException:
            os.close(self._file)
            raise

    def _open(self, accept_loss: bool) -> None:
        if self._read(0, len(_FIRST_MAGIC)) == _FIRST_MAGIC:
            self._convert()
        report = _examine(self.path, self._file)
        commit = report.commit
        if report.damage is not None:
            if not accept_loss:
                raise DamagedStoreError(f"{report.damage}; {DAMAGE_ADVICE}")
            self.loss = report.damage
            _keep_copy(self.path, self._read(0, report.nbytes))
        self.dropped_bytes += max(report.nbytes - report.end, 0)
        self.note = report.note if commit is not None and commit.end > report.end else None
        self.nbytes = report.end
        is_whole = commit is not None and commit.end == report.end and report.damage is None
        if is_whole and commit is not None and not self.dropped_bytes:
            self._commit = commit
            if commit.synced == commit.end:
                return
        os.ftruncate(self._file, max(self.nbytes, _START))
        if report.damage is not None:
            self._write(0, _MAGIC)
        # The records may have been read from the page cache. The commit says that they are on the
        # disk.
        os.fsync(self._file)
        self._commit = Commit(
            0 if commit is None else commit.number,
            self.nbytes,
            self.nbytes,
            report.intact,
            report.chain,
            boot_number(),
            is_whole and commit is not None and commit.is_followed,
        )
        self._write_commit(self._commit)
        if report.damage is not None:
            self._write_commit(self._commit)  # the other place may be damaged, too
        if self.dropped_bytes or report.damage is not None:
            # An older commit must not count again.
            os.fsync(self._file)

    def _convert(self) -> None:
        """Convert the log of an earlier version."""
        size = os.fstat(self._file).st_size
        encoded = self._read(len(_FIRST_MAGIC), 12)
        synced = int.from_bytes(encoded[:8], "little")
        at = _FIRST_START
        records = []
        while len(header := self._read(at, _RECORD_HEADER_BYTES)) == _RECORD_HEADER_BYTES:
            length = int.from_bytes(header[:4], "little")
            record = self._read(at + _RECORD_HEADER_BYTES, length)
            if len(record) < length or header[4:] != u32(_checksum(record, 0)):
                break
            records.append(record)
            at += _RECORD_HEADER_BYTES + length
        if size < _FIRST_START or encoded[8:] != u32(zlib.crc32(encoded[:8])) or at < synced:
            raise DamagedStoreError(
                f"{self.path}, a log of an earlier version, is damaged at byte {at};"
                f" {DAMAGE_ADVICE}"
            )
        self.dropped_bytes = size - at
        os.close(self._file)
        create_log(self.path, records).replace(self.path)
        self._file = os.open(self.path, os.O_RDWR | getattr(os, "O_BINARY", 0))

    def records(self) -> Iterator[bytes]:
        """Yield all complete records in order."""
        for record in _read_records(self._file):
            yield record.data

    def append(self, record: bytes, *, sync: bool) -> None:
        """Append a record. When this returns, the record is acknowledged.

        Args:
            record: the record.
            sync: whether the record must survive a power failure, and not only a kill.

        """
        commit = self._commit
        if len(record) >= 1 << 32:
            raise StoreError(f"a record of {len(record)} bytes is too long for {self.path}")
        if commit.count >= MAX_RECORDS:
            raise StoreError(
                f"{self.path} has {commit.count} records, which is the limit; set a smaller"
                " log_bytes"
            )
        chain = _checksum(record, commit.chain)
        self._write(self.nbytes, u32(len(record)) + u32(chain) + record)
        end = self.nbytes + _RECORD_HEADER_BYTES + len(record)
        # After the record: a killed process leaves no commit without its record.
        self._write_commit(
            replace(commit, end=end, count=commit.count + 1, chain=chain, boot=boot_number())
        )
        self.nbytes = end
        if sync:
            os.fsync(self._file)
            # Not synced itself. Until it is on the disk, the previous commit protects the record,
            # except from damage that comes together with a power failure.
            self._write_commit(replace(self._commit, synced=end))

    def sync(self, *, is_followed: bool = False) -> None:
        """Sync all records to the disk.

        Args:
            is_followed: whether a newer snapshot follows the log, which must exist from now on.

        """
        commit = self._commit
        if commit.synced == commit.end and commit.is_followed == is_followed:
            return
        if commit.synced < commit.end:
            os.fsync(self._file)
        self._write_commit(replace(commit, synced=commit.end, is_followed=is_followed))

    @property
    def record_bytes(self) -> int:
        """The size of all records, in bytes."""
        return self.nbytes - _START

    @property
    def is_followed(self) -> bool:
        """Whether a newer snapshot follows the log."""
        return self._commit.is_followed

    def close(self, *, sync: bool = True) -> None:
        """Close the file.

        Args:
            sync: whether to sync the records first.

        """
        try:
            if sync:
                self.sync(is_followed=self._commit.is_followed)
        finally:
            os.close(self._file)

    def _write_commit(self, commit: Commit) -> None:
        number = commit.number + 1
        self._commit = replace(commit, number=number)
        at = len(_MAGIC) + number % _NUM_COMMITS * _COMMIT.size
        self._write(at, self._commit.to_bytes())

    def _read(self, at: int, count: int) -> bytes:
        return _read(self._file, at, count)

    def _write(self, at: int, data: bytes) -> None:
        os.lseek(self._file, at, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]


def create_log(path: Path, records: list[bytes] | None = None) -> Path:
    """Write a log to a draft next to its path, synced to the disk.

    Args:
        path: the path of the log.
        records: the first records; by default none.

    Returns:
        The path of the draft, to be renamed to ``path`` when the snapshot exists.

    """
    body = []
    end = _START
    chain = 0
    for record in records or []:
        chain = _checksum(record, chain)
        body += [u32(len(record)), u32(chain), record]
        end += _RECORD_HEADER_BYTES + len(record)
    commit = Commit(0, end, end, len(records or []), chain, boot_number()).to_bytes()
    draft = draft_of(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
        for part in (_MAGIC, *[commit] * _NUM_COMMITS, *body):
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return draft


def draft_of(path: Path) -> Path:
    """Return the path of the draft of a log."""
    return path.with_name(path.name + ".new")


def examine_log(path: Path) -> LogReport:
    """Return the condition of a log, without any change of the file.

    Raises:
        OSError: the file cannot be read.

    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        return _examine(path, descriptor)
    finally:
        os.close(descriptor)


def read_log(path: Path) -> list[bytes]:
    """Return all readable records of a log, without any change of the file."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        return [record.data for record in _read_records(descriptor)]
    finally:
        os.close(descriptor)


def _examine(path: Path, descriptor: int) -> LogReport:
    nbytes = os.fstat(descriptor).st_size
    commits = _read_commits(descriptor)
    commit = max(commits, key=lambda commit: commit.number, default=None)
    intact = 0
    end = _START
    chain = 0
    agrees = commit is None or commit.end == _START
    for record in _read_records(descriptor):
        intact += 1
        end = record.end
        chain = record.chain
        agrees = agrees or (commit is not None and (end, chain) == (commit.end, commit.chain))
    damage = None
    note = None
    # One damaged commit is repaired, because the other one is at most one change older. But if the
    # rest of the file is damaged, too, the records of that change may be missing.
    is_uncertain = len(commits) < _NUM_COMMITS and end < nbytes
    is_short = nbytes < _START
    has_magic = _read(descriptor, 0, len(_MAGIC)) == _MAGIC
    if commit is None or not has_magic or is_short or is_uncertain:
        damage = (
            f"{path} is not a log of fedtern, or its start is damaged: {intact} records are"
            " readable, and all others are lost"
        )
    elif commit.end > end or not agrees:
        lost = f"{max(commit.count - intact, 0)} of {commit.count} records are lost"
        if commit.synced > end or (commit.end <= end and not agrees):
            damage = (
                f"{path} is damaged at byte {end}, although it was synced up to byte"
                f" {commit.synced}: {lost}"
            )
        elif commit.boot and commit.boot == boot_number():
            damage = (
                f"{path} is damaged at byte {end}, although it was written up to byte"
                f" {commit.end}: {lost}"
            )
        else:
            note = f"a power failure may have lost unsynced records of {path}: {lost}"
    elif end < nbytes:
        note = f"{path} ends with {nbytes - end} bytes that were never acknowledged"
    return LogReport(path, nbytes, intact, end, chain, commit, damage, note)


def _read_commits(descriptor: int) -> list[Commit]:
    """Return the readable commits."""
    places = range(len(_MAGIC), _START, _COMMIT.size)
    found = [Commit.from_bytes(_read(descriptor, at, _COMMIT.size)) for at in places]
    return [commit for commit in found if commit is not None and commit.end >= _START]


def _read_records(descriptor: int) -> Iterator[_Record]:
    at = _START
    chain = 0
    while len(header := _read(descriptor, at, _RECORD_HEADER_BYTES)) == _RECORD_HEADER_BYTES:
        length = int.from_bytes(header[:4], "little")
        record = _read(descriptor, at + _RECORD_HEADER_BYTES, length)
        if len(record) < length:
            return
        chain = _checksum(record, chain)
        if header[4:] != u32(chain):
            return
        at += _RECORD_HEADER_BYTES + length
        yield _Record(record, at, chain)


def _read(descriptor: int, at: int, count: int) -> bytes:
    os.lseek(descriptor, at, os.SEEK_SET)
    parts = []
    while count and (part := os.read(descriptor, min(count, 1 << 24))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _checksum(record: bytes, previous: int) -> int:
    return zlib.crc32(record, zlib.crc32(u32(len(record)), previous))


def _keep_copy(path: Path, data: bytes) -> None:
    """Keep the content of a damaged file, for a later examination."""
    number = 0
    while (copy := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(data)


@cache
def boot_number() -> int:
    """Return a number that identifies this boot of the machine; 0 if it is unknown."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
        return int(text.replace("-", "")[:16], 16)
    except (OSError, ValueError):
        return 0
