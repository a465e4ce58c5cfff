"""Where each tensor of a model lies in its flat vector."""

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
"""What a compressor ranks together: the whole flat vector, or each tensor by itself."""


def check_scope(scope: str) -> None:
    """Refuse anything but the two scopes there are."""
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
        # Lists say the same, but neither equal nor hash like what a peer has made of tuples.
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
        """The layout of one unnamed vector."""
        return cls(("",), ((size,),))

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Layout:
        """The layout of named arrays: anything with a ``shape``, in the mapping's order."""
        return cls(tuple(arrays), tuple(tuple(map(int, a.shape)) for a in arrays.values()))

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """One past the last position of each tensor."""
        return np.cumsum([math.prod(shape) for shape in self.shapes], dtype=np.int64)

    @cached_property
    def _end(self) -> NDArray[np.int64]:
        return np.array([self.size], np.int64)

    @cached_property
    def size(self) -> int:
        """The number of parameters."""
        return int(self.ends[-1]) if self.shapes else 0

    @cached_property
    def digest(self) -> bytes:
        """Three bytes that tell two layouts apart on the wire."""
        lines = [
            f"{len(name.encode())}:{name}:{','.join(map(str, shape))}"
            for name, shape in zip(self.names, self.shapes, strict=True)
        ]
        return hashlib.sha256("\n".join(lines).encode()).digest()[:3]

    def segments(self, scope: Scope) -> NDArray[np.int64]:
        """Ends of the parts that are compressed one by one."""
        return self.ends if scope == "tensor" else self._end

    def flatten(self, arrays: Iterable[Any]) -> Vector:
        """Copy arrays, in the layout's order, into one new vector."""
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
        """Views of a flat vector by name, in their shapes."""
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
        """How a person would call the parameter at a flat index."""
        tensor = int(np.searchsorted(self.ends, index, side="right"))
        start = int(self.ends[tensor - 1]) if tensor else 0
        place = np.unravel_index(index - start, self.shapes[tensor]) if self.shapes[tensor] else ()
        return f"{self.names[tensor]}[{', '.join(map(str, place))}]"

    def non_finite_error(self, index: int, value: float) -> NonFiniteError:
        """The error for a value that must not be sent, naming its tensor."""
        return NonFiniteError(
            f"value {value} at {self.name_at(index)} cannot be sent: it is not finite or is beyond"
            " 2**100; lower the learning rate or clip the update"
        )


def own_vector(values: ArrayLike, layout: Layout | None) -> Vector:
    """A new vector of these values, which fits the layout where one is given."""
    with np.errstate(over="ignore"):  # too large for float32 is refused by name, later
        vector = np.array(values, np.float32)
    if vector.ndim != 1 or (layout is not None and vector.size != layout.size):
        expected = "a flat vector" if layout is None else f"a flat vector of {layout.size} values"
        raise ValueError(f"weights must be {expected}, got shape {vector.shape}")
    return vector


def read_only(vector: Vector) -> Vector:
    """A view that cannot be written to."""
    view = vector.view()
    view.flags.writeable = False
    return view
