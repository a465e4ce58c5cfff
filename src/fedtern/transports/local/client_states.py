"""The states of simulated clients, in memory up to a limit and on disk beyond it."""

from __future__ import annotations

import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vectors = dict[str, NDArray[Any]]
"""Flat arrays by name: float32 vectors, or bytes that only a trainer understands."""


class _Slot(NamedTuple):
    """A place in the file of spilled vectors."""

    offset: int  # bytes
    nbytes: int
    dtype: np.dtype[Any]


class ClientStates:
    """Named vectors of each client.

    Args:
        limit: bytes to keep in memory; None keeps everything in memory. Beyond the limit, the
            vectors of the clients that were idle longest move to one anonymous file, which
            disappears with the process.
        directory: directory of the file; by default the system's directory for temporary files.

    """

    def __init__(self, limit: int | None = None, directory: Path | None = None) -> None:
        self.limit = limit
        self.directory = directory
        self.nbytes = 0  # in memory
        self._in_memory: OrderedDict[int, Vectors] = OrderedDict()  # idle longest first
        self._spilled: dict[int, dict[str, _Slot]] = {}
        self._free_slots: list[_Slot] = []  # their dtypes are those of the last use
        self._file_size = 0
        # Not a context manager: an anonymous file cannot be opened again.
        self._file = None if limit is None else tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        if self._file is not None:
            weakref.finalize(self, self._file.close)

    def get(self, client: int) -> Vectors:
        """Return the vectors of a client; empty for a client without a state."""
        if client in self._in_memory:
            return self._in_memory[client]
        return {name: self._read(slot) for name, slot in self._spilled.get(client, {}).items()}

    def put(self, client: int, vectors: Vectors) -> None:
        """Replace the vectors of a client."""
        self.nbytes -= _nbytes(self._in_memory.pop(client, {}))
        self._free_slots += self._spilled.pop(client, {}).values()
        if vectors:
            self._in_memory[client] = vectors
            self.nbytes += _nbytes(vectors)
        while self.limit is not None and self.nbytes > self.limit and len(self._in_memory) > 1:
            idle, idle_vectors = self._in_memory.popitem(last=False)
            self._spilled[idle] = {
                name: self._write(vector) for name, vector in idle_vectors.items()
            }
            self.nbytes -= _nbytes(idle_vectors)

    @property
    def num_spilled(self) -> int:
        """The number of clients whose vectors are on disk."""
        return len(self._spilled)

    def items(self) -> Iterator[tuple[int, Vectors]]:
        """Yield each client with a state, in ascending order; vectors on disk are memory-mapped."""
        disk = np.memmap(self._file, np.uint8, "r") if self._spilled and self._file else None
        for client in sorted([*self._in_memory, *self._spilled]):
            slots = self._spilled.get(client, {})
            if disk is not None and slots:
                yield client, {name: _mapped(disk, slot) for name, slot in slots.items()}
            else:
                yield client, self._in_memory[client]

    def close(self) -> None:
        """Discard all states."""
        self._in_memory.clear()
        self._spilled.clear()
        if self._file is not None:
            self._file.close()

    def _read(self, slot: _Slot) -> NDArray[Any]:
        assert self._file is not None  # vectors are spilled only with a limit
        self._file.seek(slot.offset)
        return np.frombuffer(bytearray(self._file.read(slot.nbytes)), slot.dtype)

    def _write(self, vector: NDArray[Any]) -> _Slot:
        assert self._file is not None  # vectors are spilled only with a limit
        free = next((slot for slot in self._free_slots if slot.nbytes == vector.nbytes), None)
        if free is None:
            slot = _Slot(self._file_size, vector.nbytes, vector.dtype)
            self._file_size += vector.nbytes
        else:
            self._free_slots.remove(free)
            slot = free._replace(dtype=vector.dtype)
        self._file.seek(slot.offset)
        self._file.write(vector.tobytes())
        self._file.flush()
        return slot


def _mapped(disk: np.memmap[tuple[int], np.dtype[np.uint8]], slot: _Slot) -> NDArray[Any]:
    return disk[slot.offset : slot.offset + slot.nbytes].view(np.ndarray).view(slot.dtype)


def _nbytes(vectors: Vectors) -> int:
    return sum(vector.nbytes for vector in vectors.values())
