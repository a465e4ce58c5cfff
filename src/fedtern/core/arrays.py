"""The codec by itself: one array in, bytes out, and back."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedtern.core.codecs import TernaryCodec
from fedtern.core.compressors import SparseTernary
from fedtern.core.envelope import ARRAY, seal, unseal
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates import Ternary
from fedtern.core.wire import Reader, varint

_DTYPES = (np.float16, np.float32, np.float64)
_MOST_AXES = 32


def compress(array: ArrayLike, p: float = 1 / 400) -> bytes:
    """Sparse ternary compression of an array of any shape: the signs of its largest entries.

    >>> gradient = np.random.default_rng(0).standard_normal((500, 784))
    >>> data = compress(gradient, p=1 / 400)
    >>> len(data), gradient.astype(np.float32).nbytes // len(data)
    (1380, 1136)
    """
    x = np.asarray(array)
    if x.dtype.newbyteorder("=") not in _DTYPES:
        raise ValueError(f"array must be float16, float32 or float64, got {x.dtype}")
    layout = Layout(("array",), (check_axes(x.shape),))
    with np.errstate(over="ignore"):  # too large for float32 is refused below, by name
        vector = x.astype(np.float32).reshape(-1)
    # No random choice is made in this compressor: the generator is never asked.
    return seal_array(SparseTernary(p).compress(vector, layout, np.random.default_rng(0)), layout)


def check_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that a message can tell of; refuse any other."""
    if len(shape) > _MOST_AXES:
        raise ValueError(f"array must have at most {_MOST_AXES} axes, got {len(shape)}")
    return shape


def seal_array(update: Ternary, layout: Layout) -> bytes:
    """The message of an array of the layout's one shape."""
    shape = layout.shapes[0]
    head = varint(len(shape)) + b"".join(map(varint, shape))
    return seal(ARRAY, head + TernaryCodec().encode(update, layout))


def decompress(data: bytes, max_size: int = 1 << 27) -> Vector:
    """The array that ``compress`` made of another: float32, in its shape.

    Refuses to allocate more than ``max_size`` values, whatever the message claims.

    >>> decompress(compress(np.array([[0.5, -4.0], [2.0, 1.0]]), p=0.5))
    array([[ 0., -3.],
           [ 3.,  0.]], dtype=float32)
    """
    layout, payload = open_array(data)
    if layout.size > max_size:
        raise DecodeError(
            f"message holds {layout.size} values, more than max_size={max_size}; raise it if you"
            " trust the sender"
        )
    return TernaryCodec().decode(payload, layout).to_dense().reshape(layout.shapes[0])


def open_array(data: bytes) -> tuple[Layout, bytes]:
    """The shape of a compressed array, and the rest of its message."""
    kind, reader = unseal(data)
    if kind != ARRAY:
        raise DecodeError(f"not a compressed array but a message of kind {kind}")
    return Layout(("array",), (_read_shape(reader),)), reader.rest()


def _read_shape(reader: Reader) -> tuple[int, ...]:
    if (axes := reader.varint()) > _MOST_AXES:
        raise DecodeError(f"an array has at most {_MOST_AXES} axes, got {axes}")
    shape = tuple(reader.varint() for _ in range(axes))
    if math.prod(side or 1 for side in shape) >= 1 << 48:
        raise DecodeError(f"an array of shape {shape} has no room in any memory")
    return shape
