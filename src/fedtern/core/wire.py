"""Reading and writing bytes: little-endian, bounded, and wrong in one way only."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import DecodeError
from fedtern.core.kernels import first_unsafe
from fedtern.core.layout import Vector

_FLOAT = struct.Struct("<f")
_INT = struct.Struct("<I")
_LONG = struct.Struct("<Q")
_SHORT = [bytes([value]) for value in range(0x80)]


class Reader:
    """A cursor over a message that raises ``DecodeError`` where the message ends early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at, self._end = 0, len(data)

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return self._end - self._at

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        start, end = self._at, self._at + count
        if end > self._end:
            raise DecodeError(f"message ends {end - self._end} bytes early")
        self._at = end
        return self._data[start:end]

    def rest(self) -> bytes:
        """Everything that is left."""
        return self.take(self._end - self._at)

    def byte(self) -> int:
        """One byte."""
        at = self._at
        if at >= self._end:
            self.take(1)  # which says so
        self._at = at + 1
        return self._data[at]

    def u32(self) -> int:
        """Four bytes, unsigned."""
        value: int = _INT.unpack(self.take(4))[0]
        return value

    def u64(self) -> int:
        """Eight bytes, unsigned."""
        value: int = _LONG.unpack(self.take(8))[0]
        return value

    def f32(self) -> float:
        """Four bytes, a float that is positive, finite and no larger than 2**100."""
        value: float = _FLOAT.unpack(self.take(4))[0]
        if not 0 < value <= 2.0**100:
            raise DecodeError(f"expected a positive magnitude up to 2**100, got {value}")
        return value

    def varint(self) -> int:
        """An unsigned LEB128 number of at most 64 bits, in its shortest form."""
        if (value := self.byte()) < 0x80:  # as most are
            return value
        value, shift = value & 0x7F, 7
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
        """``count`` float32 values, to be checked once it is known where they belong."""
        return np.frombuffer(self.take(4 * count), "<f4").astype(np.float32)

    def bits(self, count: int) -> NDArray[np.uint8]:
        """Bytes holding ``count`` bits, lowest first; the unused ones of the last are zero."""
        data = np.frombuffer(self.take((count + 7) // 8), np.uint8)
        if count % 8 and data[-1] >> (count % 8):
            raise DecodeError("padding bits are not zero")
        return data

    def ids(self) -> tuple[int, ...]:
        """An ascending set of numbers, written as a count and the gaps between them."""
        count = self.varint()
        if count > self.left:
            raise DecodeError(f"message is too short for {count} ids")
        ids, previous = [], -1
        for _ in range(count):
            previous += self.varint() + 1
            ids.append(previous)
        if previous >= 1 << 64:
            raise DecodeError(f"id {previous} is longer than 64 bits")
        return tuple(ids)

    def end(self) -> None:
        """Refuse bytes after the end."""
        if self.left:
            raise DecodeError(f"{self.left} bytes too many")


def check_floats(values: Vector, name: Callable[[int], str]) -> Vector:
    """Refuse values that are not finite or beyond 2**100, naming the first one's place."""
    if (bad := first_unsafe(values)) >= 0:
        raise DecodeError(f"value {values[bad]} at {name(bad)} is not finite or is beyond 2**100")
    return values


def u32(value: int) -> bytes:
    """Four bytes, unsigned."""
    return _INT.pack(value)


def u64(value: int) -> bytes:
    """Eight bytes, unsigned."""
    return _LONG.pack(value)


def f32(value: float) -> bytes:
    """Four bytes, a float."""
    return _FLOAT.pack(value)


def varint(value: int) -> bytes:
    """An unsigned LEB128 number: seven bits a byte, lowest first, the top bit says "more".

    >>> varint(300).hex()
    'ac02'
    """
    if 0 <= value < 0x80:  # as most are
        return _SHORT[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def ids(values: Iterable[int]) -> bytes:
    """A set of numbers as a count and the gaps between them."""
    out, previous = [], -1
    for value in sorted(values):
        out.append(varint(value - previous - 1))
        previous = value
    return varint(len(out)) + b"".join(out)


def floats(values: Vector) -> bytes:
    """Float32 values."""
    return values.astype("<f4", copy=False).tobytes()


def check_id(client_id: int) -> int:
    """A client's id as a plain integer; refuse what cannot be written as one."""
    number = operator.index(client_id)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"client_id must be in [0, 2**64), got {client_id}")
    return number
