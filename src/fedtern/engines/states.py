"""What each simulated client remembers, in memory as long as there is room."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedtern.layout import Vector

Vectors = dict[str, Vector]


class States:
    """Named vectors for each client that has any.

    Past ``limit`` bytes, those of the clients that have been idle longest are written to files
    in a temporary directory, and read back when they are asked for.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.nbytes = 0
        self._held: OrderedDict[int, Vectors] = OrderedDict()  # idle longest first
        self._spilled: dict[int, dict[str, Path]] = {}
        self._directory: Path | None = None

    def get(self, client: int) -> Vectors:
        """The vectors of a client; none if it never had any."""
        if client in self._held:
            return self._held[client]
        paths = self._spilled.get(client, {})
        return {name: np.fromfile(path, np.float32) for name, path in paths.items()}

    def put(self, client: int, vectors: Vectors) -> None:
        """Remember the vectors of a client in place of those it had."""
        self.nbytes -= _nbytes(self._held.pop(client, {}))
        for path in self._spilled.pop(client, {}).values():
            path.unlink()
        if vectors:
            self._held[client] = vectors
            self.nbytes += _nbytes(vectors)
        while self.limit is not None and self.nbytes > self.limit and len(self._held) > 1:
            self._spill(*self._held.popitem(last=False))

    @property
    def spilled(self) -> int:
        """How many clients' vectors are on disk."""
        return len(self._spilled)

    def items(self) -> Iterator[tuple[int, Vectors]]:
        """Every client that has vectors, in order, with those on disk mapped into memory."""
        for client in sorted([*self._held, *self._spilled]):
            paths = self._spilled.get(client)
            if paths is None:
                yield client, self._held[client]
            else:
                yield client, {n: np.memmap(p, np.float32, "r") for n, p in paths.items()}

    def _spill(self, client: int, vectors: Vectors) -> None:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="fedtern-"))
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        paths = {}
        for name, vector in vectors.items():
            paths[name] = self._directory / f"{client}.{name}.f32"
            vector.tofile(paths[name])
        self._spilled[client] = paths
        self.nbytes -= _nbytes(vectors)


def _nbytes(vectors: Vectors) -> int:
    return sum(vector.nbytes for vector in vectors.values())
