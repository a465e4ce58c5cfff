"""Snapshots: a state as named arrays and JSON, in the safetensors format with a checksum."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import DecodeError

_DTYPES = {
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "I8": "|i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "|u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "BOOL": "|b1",
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_LENGTH = struct.Struct("<Q")
_NO_CHECKSUM = "0" * 10

# Exceptions that reading a damaged file can raise.
_DAMAGE = (
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


@dataclass(frozen=True)
class Snapshot:
    """Named arrays, and other values as JSON.

    >>> state = Snapshot({"residual": np.zeros(3, np.float32)}, {"round": 7})
    >>> Snapshot.from_bytes(state.to_bytes()).meta
    {'round': 7}
    """

    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]
    is_owner: bool = False  # whether nobody else uses the memory of the arrays

    def check_meta(self, expected: Mapping[str, object]) -> None:
        """Check that the snapshot has the given values.

        Raises:
            ValueError: a value differs, because the snapshot is of another state.

        """
        for name, value in expected.items():
            if (found := self.meta.get(name)) != value:
                raise ValueError(f"the snapshot's {name} is {found!r}, expected {value!r}")

    def arrays_with_prefix(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the arrays whose names start with a prefix, by the rest of their names."""
        return {
            name.removeprefix(prefix): array
            for name, array in self.arrays.items()
            if name.startswith(prefix)
        }

    def copies_with_prefix(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Like ``arrays_with_prefix``, but arrays that the caller may change.

        They are copies, unless the snapshot is the owner of its memory, which it hands on.
        """
        found = self.arrays_with_prefix(prefix)
        return found if self.is_owner else {name: array.copy() for name, array in found.items()}

    @property
    def digest(self) -> str:
        """A hash of the arrays: names, types, shapes and contents."""
        found = hashlib.sha256()
        for name, array in sorted(self.arrays.items()):
            found.update(json.dumps([name, _NAMES[array.dtype], array.shape]).encode())
            found.update(_buffer(array))
        return found.hexdigest()[:16]

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes of the file in parts, so that a large state is not copied as a whole."""
        header: dict[str, Any] = {}
        offset = 0
        body_crc = 0
        # Wide types first, so that all arrays are aligned in the file and need no copy when read.
        arrays = sorted(self.arrays.items(), key=lambda item: -item[1].dtype.itemsize)
        for name, array in arrays:
            end = offset + array.nbytes
            header[name] = {
                "dtype": _NAMES[array.dtype],
                "shape": list(array.shape),
                "data_offsets": [offset, end],
            }
            offset = end
            body_crc = zlib.crc32(_buffer(array), body_crc)
        # The checksum comes first, so that ``replace`` below finds it and not other zeros.
        meta = {"crc32": _NO_CHECKSUM, "fedtern": json.dumps(dict(self.meta))}
        text = json.dumps({"__metadata__": meta, **header}).encode()
        text += b" " * (-len(text) % 8)
        # The checksum covers the header that contains it, with zeros instead of the checksum.
        checksum = _checksum(text, body_crc).encode()
        yield _LENGTH.pack(len(text)) + text.replace(_NO_CHECKSUM.encode(), checksum, 1)
        for _, array in arrays:
            yield _buffer(array)

    def to_bytes(self) -> bytes:
        """Return the bytes of the file."""
        return b"".join(self.chunks())

    @classmethod
    def from_bytes(cls, data: bytes | mmap | memoryview) -> Snapshot:
        """Read the bytes of a file.

        Args:
            data: the bytes. If they are a ``memoryview`` of writable memory, the snapshot becomes
                the owner of that memory.

        Raises:
            DecodeError: the file is damaged or is not a snapshot.

        """
        try:
            return cls._parse(data)
        except _DAMAGE as error:
            raise DecodeError(f"not a fedtern snapshot, or a damaged one: {error}") from error

    @classmethod
    def _parse(cls, data: bytes | mmap | memoryview) -> Snapshot:
        (length,) = _LENGTH.unpack_from(data)
        text = bytes(data[8 : 8 + length])
        header = json.loads(text)
        meta = header.pop("__metadata__")
        body = memoryview(data)[8 + length :]
        blank = text.replace(meta["crc32"].encode(), _NO_CHECKSUM.encode(), 1)
        if _checksum(blank, zlib.crc32(body)) != meta["crc32"]:
            raise ValueError("checksum does not match")
        arrays = {}
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            dtype = np.dtype(_DTYPES[entry["dtype"]])
            if end - start != math.prod(entry["shape"]) * dtype.itemsize:
                raise ValueError(f"array {name!r} does not have the size of its shape")
            array = np.frombuffer(body[start:end], dtype).reshape(entry["shape"])
            # Files of earlier versions have arrays that are not aligned.
            arrays[name] = array if array.flags.aligned else array.copy()
        is_owner = isinstance(data, memoryview) and not data.readonly
        return cls(arrays, dict(json.loads(meta["fedtern"])), is_owner)


def _buffer(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _checksum(header: bytes, body_crc: int) -> str:
    return f"{zlib.crc32(header, body_crc):010d}"


def pack_blobs(blobs: Mapping[str, list[bytes]]) -> dict[str, NDArray[Any]]:
    """Convert named lists of byte strings to arrays that a snapshot can hold."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, parts in blobs.items():
        arrays[name] = np.frombuffer(b"".join(parts), np.uint8)
        arrays[f"{name}.lengths"] = np.array([len(part) for part in parts], np.int64)
    return arrays


def unpack_blobs(arrays: Mapping[str, NDArray[Any]], name: str) -> list[bytes]:
    """Undo ``pack_blobs`` for one list."""
    ends = np.cumsum(arrays[f"{name}.lengths"])
    data = arrays[name].tobytes()
    return [data[start:end] for start, end in pairwise([0, *ends.tolist()])]
