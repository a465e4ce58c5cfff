"""Vectors in memory that forked processes share."""

from __future__ import annotations

import mmap
import sys
import weakref

import numpy as np

from fedtern.core.errors import FedternError
from fedtern.core.layout import Vector

_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # the mmap module does not name it


class Blocks:
    """Vectors of one size, which are given out and come back when nobody holds them any more.

    They must be there before processes are forked. So there is an address for every vector that
    anybody may ever want, and memory only for those that have been written to.
    """

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self._bytes = -(-max(4 * size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, count * self._bytes, flags=flags | _NO_RESERVE)
        self._free: list[int] = []
        self._unused, self._count = 0, count
        self._numbers: dict[int, int] = {}  # of those that are taken, by their identity

    def __getitem__(self, number: int) -> Vector:
        """A vector by its number, whoever holds it."""
        return np.frombuffer(self._memory, np.float32, self.size, number * self._bytes)

    def take(self) -> Vector:
        """A vector that nobody else holds, with anything in it."""
        if self._free:
            number = self._free.pop()
        elif self._unused < self._count:
            number, self._unused = self._unused, self._unused + 1
        else:
            raise FedternError(
                f"all {self._count} vectors that processes share are held by somebody; go on with"
                " --workers 0"
            )
        vector = self[number]
        # Every view of it, and every view of a view, holds this very object.
        weakref.finalize(vector, self._give_back, id(vector)).atexit = False
        self._numbers[id(vector)] = number
        return vector

    def _give_back(self, vector: int) -> None:
        self._free.append(self._numbers.pop(vector))

    @property
    def left(self) -> int:
        """How many there are to be taken."""
        return len(self._free) + self._count - self._unused

    def adopt(self, vector: Vector) -> Vector:
        """The vector itself if it was taken from here, else one with the same in it."""
        if id(vector) in self._numbers:
            return vector
        ours = self.take()
        ours[...] = vector
        return ours

    def number(self, vector: Vector) -> int:
        """The number of a vector that was taken from here."""
        return self._numbers[id(vector)]
