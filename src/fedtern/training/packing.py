"""Named arrays of fixed shapes and dtypes as one array of bytes, for shared memory and files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtern.federation.client_session import Blob

_ALIGNMENT = 8  # of each array in the blob, so that views of any dtype are possible


class ArraySpec(NamedTuple):
    """Name, shape and dtype of an array."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Packing:
    """The arrays in a blob, in order.

    >>> packing = Packing.of({"mean": np.zeros(3, np.float32), "steps": np.array(7)})
    >>> blob = packing.pack({"mean": np.ones(3, np.float32), "steps": np.array(8)})
    >>> blob.nbytes, int(packing.views(blob)["steps"])
    (24, 8)
    """

    arrays: tuple[ArraySpec, ...] = ()

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Packing:
        """Return the packing of some arrays."""
        return cls(tuple(ArraySpec(name, a.shape, a.dtype) for name, a in arrays.items()))

    @cached_property
    def _offsets(self) -> list[int]:
        offsets = [0]
        for spec in self.arrays:
            nbytes = math.prod(spec.shape) * spec.dtype.itemsize
            offsets.append(offsets[-1] + -(-nbytes // _ALIGNMENT) * _ALIGNMENT)
        return offsets

    @property
    def nbytes(self) -> int:
        """The size of a blob."""
        return self._offsets[-1]

    def views(self, blob: Blob) -> dict[str, NDArray[Any]]:
        """Return views of a blob by name.

        Raises:
            ValueError: the blob is of another size.

        """
        if blob.nbytes != self.nbytes:
            raise ValueError(f"the client's state has {blob.nbytes} bytes, expected {self.nbytes}")
        return {
            spec.name: np.ndarray(spec.shape, spec.dtype, blob.data, offset)
            for spec, offset in zip(self.arrays, self._offsets, strict=False)
        }

    def pack(self, arrays: Mapping[str, NDArray[Any]], out: Blob | None = None) -> Blob:
        """Copy arrays into a blob.

        Args:
            arrays: the arrays by name.
            out: the blob to write to; None makes a new one.

        Raises:
            ValueError: an array is missing, or has changed its shape or dtype; with both values.

        """
        blob = np.zeros(self.nbytes, np.uint8) if out is None else out
        views = self.views(blob)
        for spec in self.arrays:
            array = arrays.get(spec.name)
            if array is None or array.shape != spec.shape or array.dtype != spec.dtype:
                now = "is missing" if array is None else f"is {array.dtype}{list(array.shape)}"
                raise ValueError(
                    f"tensor {spec.name!r} was {spec.dtype}{list(spec.shape)} and now {now};"
                    " tensors that a client keeps must not change between rounds"
                )
            views[spec.name][...] = array
        return blob

    def __add__(self, other: Packing) -> Packing:
        """Return the packing of the arrays of both."""
        return Packing(self.arrays + other.arrays)
