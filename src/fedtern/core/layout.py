"""Layouts: names, shapes and positions of a model's tensors in its flat vector."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtern.core.errors import NonFiniteError

Vector = NDArray[np.float32]
"""A one-dimensional float32 array."""

Scope = Literal["model", "tensor"]
"""Whether a compressor works on the whole flat vector or on each tensor separately."""


def check_scope(scope: str) -> None:
    """Raise a ``ValueError`` for an unknown scope."""
    if scope not in ("model", "tensor"):
        raise ValueError(f'scope must be "model" or "tensor", got {scope!r}')


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's tensors, in the order in which they are flattened.

    >>> layout = Layout(("weight", "bias"), ((10, 784), (10,)))
    >>> layout.size, layout.name_at(7_845)
    (7850, 'bias[5]')
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        # Tuples, so that layouts made from lists are equal to and hash like others.
        object.__setattr__(self, "names", tuple(self.names))
        shapes = tuple(tuple(map(operator.index, shape)) for shape in self.shapes)
        object.__setattr__(self, "shapes", shapes)
        if len(self.names) != len(self.shapes):
            raise ValueError(f"got {len(self.names)} names for {len(self.shapes)} shapes")
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"tensor names must differ, got {self.names}")
        if any(side < 0 for shape in self.shapes for side in shape):
            raise ValueError(f"shapes must not be negative, got {self.shapes}")

    @classmethod
    def flat(cls, size: int) -> Layout:
        """Return the layout of one unnamed vector."""
        return cls(("",), ((size,),))

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Layout:
        """Return the layout of named arrays (objects with a ``shape``), in their order."""
        return cls(tuple(arrays), tuple(tuple(map(int, a.shape)) for a in arrays.values()))

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """One past the last position of each tensor."""
        return np.cumsum([math.prod(shape) for shape in self.shapes], dtype=np.int64)

    @cached_property
    def _model_end(self) -> NDArray[np.int64]:
        return np.array([self.size], np.int64)

    @cached_property
    def size(self) -> int:
        """The number of parameters."""
        return int(self.ends[-1]) if self.shapes else 0

    @cached_property
    def digest(self) -> bytes:
        """Three bytes that identify the layout in messages."""
        lines = [
            f"{len(name.encode())}:{name}:{','.join(map(str, shape))}"
            for name, shape in zip(self.names, self.shapes, strict=True)
        ]
        return hashlib.sha256("\n".join(lines).encode()).digest()[:3]

    def segments(self, scope: Scope) -> NDArray[np.int64]:
        """Return the ends of the segments that are compressed separately."""
        return self.ends if scope == "tensor" else self._model_end

    def flatten(self, arrays: Iterable[Any]) -> Vector:
        """Copy arrays, in the layout's order, into one new vector.

        Raises:
            ValueError: the number of arrays or a shape does not fit the layout.

        """
        out = np.empty(self.size, np.float32)
        parts = list(arrays)
        if len(parts) != len(self.shapes):
            raise ValueError(f"got {len(parts)} arrays for a layout of {len(self.shapes)}")
        for name, shape, part, view in zip(
            self.names, self.shapes, parts, self.unflatten(out).values(), strict=True
        ):
            if tuple(part.shape) != shape:
                raise ValueError(f"tensor {name!r} has shape {tuple(part.shape)}, expected {shape}")
            view[...] = part
        return out

    def unflatten(self, vector: Vector) -> dict[str, Vector]:
        """Return views of a flat vector by name, in the tensors' shapes.

        Raises:
            ValueError: the vector does not fit the layout.

        """
        if vector.shape != (self.size,):
            raise ValueError(f"expected a vector of {self.size} values, got shape {vector.shape}")
        starts = self.ends - [math.prod(shape) for shape in self.shapes]
        return {
            name: vector[start:end].reshape(shape)
            for name, shape, start, end in zip(
                self.names, self.shapes, starts, self.ends, strict=True
            )
        }

    def name_at(self, index: int) -> str:
        """Return the name of the parameter at a flat index, such as "weight[3, 7]"."""
        tensor = int(np.searchsorted(self.ends, index, side="right"))
        start = int(self.ends[tensor - 1]) if tensor else 0
        shape = self.shapes[tensor]
        indices = np.unravel_index(index - start, shape) if shape else ()
        return f"{self.names[tensor]}[{', '.join(map(str, indices))}]"

    def non_finite_error(self, index: int, value: float) -> NonFiniteError:
        """Return the error for a value that cannot be sent, which names its tensor."""
        return NonFiniteError(
            f"value {value} at {self.name_at(index)} cannot be sent: it is not finite or is beyond"
            " 2**100; lower the learning rate or clip the update"
        )


def copy_vector(values: ArrayLike, layout: Layout | None) -> Vector:
    """Copy values to a new vector.

    Raises:
        ValueError: the values are not a flat vector, or do not fit the layout.

    """
    with np.errstate(over="ignore"):  # values too large for float32 are refused later, by name
        vector = np.array(values, np.float32)
    if vector.ndim != 1 or (layout is not None and vector.size != layout.size):
        expected = "a flat vector" if layout is None else f"a flat vector of {layout.size} values"
        raise ValueError(f"weights must be {expected}, got shape {vector.shape}")
    return vector


def read_only(vector: Vector) -> Vector:
    """Return a read-only view of a vector."""
    view = vector.view()
    view.flags.writeable = False
    return view
