"""Vectors in memory that forked processes share."""

from __future__ import annotations

import mmap
import sys
import weakref

import numpy as np

from fedtern.core.errors import FedternError
from fedtern.core.layout import Vector

# Not a constant of the mmap module: pages get memory when they are first written.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


class SharedVectors:
    """A pool of vectors of one size in shared memory.

    ``take`` returns a vector, which goes back to the pool when no reference to it is left. The
    memory must exist before processes are forked, so the pool reserves addresses for all vectors;
    only vectors that have been written to occupy memory.

    Args:
        size: number of float32 values in a vector.
        count: number of vectors.

    Raises:
        OSError: the system does not allow to reserve that much memory.

    """

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self._count = count
        self._stride = -(-max(4 * size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE  # bytes
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._memory = mmap.mmap(-1, count * self._stride, flags=flags)
        self._never_taken = 0  # vectors from this index on have no memory yet
        self._returned: list[int] = []
        self._index_by_id: dict[int, int] = {}  # of the vectors that are taken

    def __getitem__(self, index: int) -> Vector:
        """Return a view of a vector, taken or not."""
        return np.frombuffer(self._memory, np.float32, self.size, index * self._stride)

    def take(self) -> Vector:
        """Return a vector that is not in use, with undefined content.

        Raises:
            FedternError: all vectors are in use.

        """
        if self._returned:
            index = self._returned.pop()
        elif self._never_taken < self._count:
            index = self._never_taken
            self._never_taken += 1
        else:
            raise FedternError(
                f"All {self._count} shared vectors are in use; continue with --workers 0"
            )
        vector = self[index]
        # All views of the vector keep a reference to this object.
        weakref.finalize(vector, self._put_back, id(vector)).atexit = False
        self._index_by_id[id(vector)] = index
        return vector

    def _put_back(self, vector_id: int) -> None:
        self._returned.append(self._index_by_id.pop(vector_id))

    @property
    def available(self) -> int:
        """The number of vectors that are not in use."""
        return len(self._returned) + self._count - self._never_taken

    def adopt(self, vector: Vector) -> Vector:
        """Return the vector if it was taken from this pool, else a copy in the pool."""
        if id(vector) in self._index_by_id:
            return vector
        shared = self.take()
        shared[...] = vector
        return shared

    def index(self, vector: Vector) -> int:
        """Return the index of a vector that was taken from this pool."""
        return self._index_by_id[id(vector)]
