"""Layouts: names, shapes and positions of a model's tensors in its flat vector."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtern.core.dtypes import check_dtype, is_float, storage_dtype
from fedtern.core.errors import NonFiniteError

T = TypeVar("T", bound=np.generic)

Vector = NDArray[np.float32]
"""A one-dimensional float32 array."""

Scope = Literal["model", "tensor"]
"""Whether a compressor works on the whole flat vector or on each tensor separately."""


def check_scope(scope: str) -> None:
    """Raise a ``ValueError`` for an unknown scope."""
    if scope not in ("model", "tensor"):
        raise ValueError(f'scope must be "model" or "tensor", got {scope!r}')


Rule = Literal["average", "latest"]
"""How the server combines the values of a carried tensor in a cohort's uploads.

"average" takes the mean of floating-point values, weighted like the updates, and the maximum of
integers and booleans. "latest" takes the values of the upload that was accepted last.
"""


@dataclass(frozen=True)
class Carried:
    """A tensor that is sent as it is, such as the statistics of batch normalisation.

    Attributes:
        name: the tensor's name.
        shape: its shape.
        dtype: its dtype, such as "float32" or "int64".
        rule: how the server combines the values of a cohort.

    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    rule: Rule = "average"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(operator.index, self.shape)))
        check_dtype(self.dtype, self.name)
        if self.rule not in ("average", "latest"):
            raise ValueError(
                f'the rule of tensor {self.name!r} must be "average" or "latest", got {self.rule!r}'
            )

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the values are floating-point numbers."""
        return is_float(self.dtype)

    @property
    def storage(self) -> np.dtype[Any]:
        """The NumPy dtype that holds the tensor; uint16 for bfloat16."""
        return storage_dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """The size of the values in bytes."""
        return self.size * self.storage.itemsize


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's trained tensors, in the order in which they are flattened.

    All attributes but ``carried`` are about trained tensors. Their values are one flat float32
    vector, which is compressed; each side may convert them to a dtype of its own.

    Args:
        names: names of the trained tensors.
        shapes: their shapes.
        carried: tensors that are not trained but sent as they are.

    >>> layout = Layout(("weight", "bias"), ((10, 784), (10,)))
    >>> layout.size, layout.name_at(7_845)
    (7850, 'bias[5]')
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    carried: tuple[Carried, ...] = ()

    def __post_init__(self) -> None:
        # Tuples, so that layouts made from lists are equal to and hash like others.
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "carried", tuple(self.carried))
        shapes = tuple(tuple(map(operator.index, shape)) for shape in self.shapes)
        object.__setattr__(self, "shapes", shapes)
        if len(self.names) != len(self.shapes):
            raise ValueError(f"got {len(self.names)} names for {len(self.shapes)} shapes")
        every_name = [*self.names, *(tensor.name for tensor in self.carried)]
        if len(set(every_name)) != len(every_name):
            raise ValueError(f"tensor names must differ, got {tuple(every_name)}")
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
    def rows(self) -> NDArray[np.int64]:
        """The number of rows of each tensor: its first axis, or 1 with at most one axis."""
        return np.array([shape[0] if len(shape) > 1 else 1 for shape in self.shapes], np.int64)

    @cached_property
    def _model_end(self) -> NDArray[np.int64]:
        return np.array([self.size], np.int64)

    @cached_property
    def size(self) -> int:
        """The number of parameters."""
        return int(self.ends[-1]) if self.shapes else 0

    @cached_property
    def carried_nbytes(self) -> int:
        """The size of all carried tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.carried)

    @property
    def nbytes(self) -> int:
        """The size of the model in bytes: trained tensors as float32, carried ones as they are."""
        return 4 * self.size + self.carried_nbytes

    @cached_property
    def digest(self) -> bytes:
        """Three bytes that identify the layout in messages."""
        lines = [
            _digest_line(name, shape) for name, shape in zip(self.names, self.shapes, strict=True)
        ]
        lines += [
            f"{_digest_line(tensor.name, tensor.shape)}:{tensor.dtype}:{tensor.rule}"
            for tensor in self.carried
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


def _digest_line(name: str, shape: tuple[int, ...]) -> str:
    return f"{len(name.encode())}:{name}:{','.join(map(str, shape))}"


def copy_vector(
    values: ArrayLike, layout: Layout | None, name: str = "weights", *, copy: bool = True
) -> Vector:
    """Copy values to a new vector.

    Args:
        values: the values.
        layout: the model's tensors, if they are known.
        name: name of the values for the error message.
        copy: False to return the values themselves if they already are such a vector.

    Raises:
        ValueError: the values are not a flat vector, or do not fit the layout.

    """
    with np.errstate(over="ignore"):  # values too large for float32 are refused later, by name
        vector = np.array(values, np.float32, order="C", copy=copy or None)
        if not vector.flags.writeable:
            vector = vector.copy()
    if vector.ndim != 1 or (layout is not None and vector.size != layout.size):
        expected = "a flat vector" if layout is None else f"a flat vector of {layout.size} values"
        raise ValueError(f"{name} must be {expected}, got shape {vector.shape}")
    return vector


def read_only(array: NDArray[T]) -> NDArray[T]:
    """Return a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view
