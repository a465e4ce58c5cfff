"""What each simulated client remembers, in memory as long as there is room."""

from __future__ import annotations

import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedtern.core.layout import Vector

Vectors = dict[str, Vector]


class States:
    """Named vectors for each client that has any.

    Past ``limit`` bytes, those of the clients that have been idle longest are kept in one
    nameless file in ``directory``, which vanishes with the process.
    """

    def __init__(self, limit: int | None = None, directory: Path | None = None) -> None:
        self.limit = limit
        self.directory = directory
        self.nbytes = 0
        self._held: OrderedDict[int, Vectors] = OrderedDict()  # idle longest first
        self._spilled: dict[int, dict[str, tuple[int, int]]] = {}  # offset and number of values
        self._free: list[tuple[int, int]] = []
        # Open as long as the states are: it has no name to be opened by again.
        self._file = None if limit is None else tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        self._end = 0
        if self._file is not None:
            weakref.finalize(self, self._file.close)

    def get(self, client: int) -> Vectors:
        """The vectors of a client; none if it never had any."""
        if client in self._held:
            return self._held[client]
        return {name: self._read(*slot) for name, slot in self._spilled.get(client, {}).items()}

    def put(self, client: int, vectors: Vectors) -> None:
        """Remember the vectors of a client in place of those it had."""
        self.nbytes -= _nbytes(self._held.pop(client, {}))
        self._free += self._spilled.pop(client, {}).values()
        if vectors:
            self._held[client] = vectors
            self.nbytes += _nbytes(vectors)
        while self.limit is not None and self.nbytes > self.limit and len(self._held) > 1:
            idle, kept = self._held.popitem(last=False)
            self._spilled[idle] = {name: self._write(vector) for name, vector in kept.items()}
            self.nbytes -= _nbytes(kept)

    @property
    def spilled(self) -> int:
        """How many clients' vectors are on disk."""
        return len(self._spilled)

    def items(self) -> Iterator[tuple[int, Vectors]]:
        """Every client that has vectors, in order; those on disk are views of the file."""
        disk = np.memmap(self._file, np.float32, "r") if self._spilled and self._file else None
        for client in sorted([*self._held, *self._spilled]):
            slots = self._spilled.get(client, {})
            if disk is not None and slots:
                parts = {n: disk[at // 4 : at // 4 + count] for n, (at, count) in slots.items()}
                yield client, {name: part.view(np.ndarray) for name, part in parts.items()}
            else:
                yield client, self._held[client]

    def close(self) -> None:
        """Forget everything."""
        self._held.clear()
        self._spilled.clear()
        if self._file is not None:
            self._file.close()

    def _read(self, at: int, count: int) -> Vector:
        assert self._file is not None  # nothing is spilled without one
        self._file.seek(at)
        return np.frombuffer(bytearray(self._file.read(4 * count)), np.float32)

    def _write(self, vector: Vector) -> tuple[int, int]:
        assert self._file is not None  # nothing is spilled without a limit
        slot = next((s for s in self._free if s[1] == vector.size), None)
        if slot is None:
            slot, self._end = (self._end, vector.size), self._end + vector.nbytes
        else:
            self._free.remove(slot)
        self._file.seek(slot[0])
        self._file.write(vector.tobytes())
        self._file.flush()
        return slot


def _nbytes(vectors: Vectors) -> int:
    return sum(vector.nbytes for vector in vectors.values())
