"""Read and write numbers as bytes, little-endian. All read errors are a ``DecodeError``."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import DecodeError
from fedtern.core.kernels import first_unsafe
from fedtern.core.layout import Vector

_FLOAT = struct.Struct("<f")
_INT = struct.Struct("<I")
_LONG = struct.Struct("<Q")
_ONE_BYTE_VARINTS = [bytes([value]) for value in range(0x80)]


class Reader:
    """Reads a message from start to end; raises a ``DecodeError`` if the message ends early.

    Args:
        data: the message.
        start: the first byte to read.
        end: one past the last byte to read; None for all.

    """

    def __init__(self, data: bytes, start: int = 0, end: int | None = None) -> None:
        self._data = data
        self._at = start
        self._end = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        """The number of bytes not read yet."""
        return self._end - self._at

    def take(self, count: int) -> bytes:
        """Read the next ``count`` bytes."""
        start = self._at
        end = start + count
        if end > self._end:
            raise DecodeError(f"message ends {end - self._end} bytes early")
        self._at = end
        return self._data[start:end]

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self.take(self._end - self._at)

    def byte(self) -> int:
        """Read one byte."""
        at = self._at
        if at >= self._end:
            self.take(1)  # raises the error
        self._at = at + 1
        return self._data[at]

    def u32(self) -> int:
        """Read an unsigned integer of four bytes."""
        value: int = _INT.unpack(self.take(4))[0]
        return value

    def u64(self) -> int:
        """Read an unsigned integer of eight bytes."""
        value: int = _LONG.unpack(self.take(8))[0]
        return value

    def f32(self) -> float:
        """Read a positive float32 up to 2**100."""
        value: float = _FLOAT.unpack(self.take(4))[0]
        if not 0 < value <= 2.0**100:
            raise DecodeError(f"expected a positive magnitude up to 2**100, got {value}")
        return value

    def varint(self) -> int:
        """Read an unsigned LEB128 number of at most 64 bits, in its shortest form."""
        if (value := self.byte()) < 0x80:  # the common case
            return value
        value &= 0x7F
        shift = 7
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                break
            shift += 7
            if shift > 63:
                raise DecodeError("a number is longer than 64 bits")
        if value >> 64 or not byte:
            raise DecodeError("a number is longer than 64 bits or not in its shortest form")
        return value

    def floats(self, count: int) -> Vector:
        """Read float32 values; the caller checks them with ``check_floats``."""
        return self.array("<f4", count).astype(np.float32)

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        """Read values of a dtype as a view of the message: they may be a whole model."""
        start = self._at
        size = np.dtype(dtype).itemsize * count
        if size > self._end - start:
            self.take(size)  # raises the error
        self._at = start + size
        return np.frombuffer(self._data, dtype, count, start)

    def bits(self, count: int) -> NDArray[np.uint8]:
        """Read the bytes of ``count`` bits, lowest first; unused bits must be zero."""
        data = np.frombuffer(self.take((count + 7) // 8), np.uint8)
        if count % 8 and data[-1] >> (count % 8):
            raise DecodeError("padding bits are not zero")
        return data

    def ids(self) -> tuple[int, ...]:
        """Read an ascending set of numbers, written as a count and the gaps between them."""
        count = self.varint()
        if count > self.remaining:
            raise DecodeError(f"message is too short for {count} ids")
        ids = []
        previous = -1
        for _ in range(count):
            previous += self.varint() + 1
            ids.append(previous)
        if previous >= 1 << 64:
            raise DecodeError(f"id {previous} is longer than 64 bits")
        return tuple(ids)

    def end(self) -> None:
        """Check that no bytes remain."""
        if self.remaining:
            raise DecodeError(f"message has {self.remaining} bytes too many")


def check_floats(values: Vector, name: Callable[[int], str]) -> Vector:
    """Return the values after checking that all are finite and at most 2**100.

    Args:
        values: the values.
        name: returns the name of the value at an index, for the error message.

    Raises:
        DecodeError: a value is NaN, infinite or beyond 2**100.

    """
    if (bad := first_unsafe(values)) >= 0:
        raise DecodeError(f"value {values[bad]} at {name(bad)} is not finite or is beyond 2**100")
    return values


def u32(value: int) -> bytes:
    """Encode an unsigned integer with four bytes."""
    return _INT.pack(value)


def u64(value: int) -> bytes:
    """Encode an unsigned integer with eight bytes."""
    return _LONG.pack(value)


def f32(value: float) -> bytes:
    """Encode a float32."""
    return _FLOAT.pack(value)


def varint(value: int) -> bytes:
    """Encode an unsigned LEB128 number: seven bits per byte, lowest first, the top bit for "more".

    >>> varint(300).hex()
    'ac02'
    """
    if 0 <= value < 0x80:  # the common case
        return _ONE_BYTE_VARINTS[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def ids(values: Iterable[int]) -> bytes:
    """Encode a set of numbers as a count and the gaps between them."""
    out = []
    previous = -1
    for value in sorted(values):
        out.append(varint(value - previous - 1))
        previous = value
    return varint(len(out)) + b"".join(out)


def floats_view(values: Vector) -> memoryview:
    """Like ``floats``, without a copy on most machines; for ``seal`` and checksums."""
    return values.astype("<f4", copy=False).data


def floats(values: Vector) -> bytes:
    """Encode float32 values."""
    return values.astype("<f4", copy=False).tobytes()


def check_id(client_id: int) -> int:
    """Return a client's id as a Python int.

    Raises:
        ValueError: the id is not in [0, 2**64).

    """
    number = operator.index(client_id)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"client_id must be in [0, 2**64), got {client_id}")
    return number
