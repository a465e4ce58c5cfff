"""Compress a single array to bytes, and back."""

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
_MAX_AXES = 32


def compress(array: ArrayLike, p: float = 1 / 400) -> bytes:
    """Compress an array to the signs of its largest entries and their mean magnitude.

    Args:
        array: a floating-point array of any shape.
        p: the share of entries to keep.

    Returns:
        A message that ``decompress`` reads.

    Raises:
        NonFiniteError: a value is NaN, infinite or beyond 2**100.
        ValueError: the array is not of floats or has too many axes, or ``p`` is not in (0, 1].

    >>> gradient = np.random.default_rng(0).standard_normal((500, 784))
    >>> data = compress(gradient, p=1 / 400)
    >>> len(data), gradient.astype(np.float32).nbytes // len(data)
    (1380, 1136)
    """
    x = np.asarray(array)
    if x.dtype.newbyteorder("=") not in _DTYPES:
        raise ValueError(f"array must be float16, float32 or float64, got {x.dtype}")
    layout = Layout(("array",), (check_axes(x.shape),))
    with np.errstate(over="ignore"):  # values too large for float32 are refused below, by name
        vector = x.astype(np.float32).reshape(-1)
    rng = np.random.default_rng(0)  # this compressor uses no random numbers
    return seal_array(SparseTernary(p).compress(vector, layout, rng), layout)


def check_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape; raise a ``ValueError`` if it has too many axes."""
    if len(shape) > _MAX_AXES:
        raise ValueError(f"array must have at most {_MAX_AXES} axes, got {len(shape)}")
    return shape


def seal_array(update: Ternary, layout: Layout) -> bytes:
    """Return the message of an array; the layout has one tensor."""
    shape = layout.shapes[0]
    encoded_shape = varint(len(shape)) + b"".join(map(varint, shape))
    return seal(ARRAY, encoded_shape + TernaryCodec().encode(update, layout))


def decompress(data: bytes, max_size: int = 1 << 27) -> Vector:
    """Decode a message of ``compress`` to a float32 array of the original shape.

    Args:
        data: the message.
        max_size: the largest number of values to allocate.

    Raises:
        DecodeError: the bytes are not such a message, or the array is larger than ``max_size``.

    >>> decompress(compress(np.array([[0.5, -4.0], [2.0, 1.0]]), p=0.5))
    array([[ 0., -3.],
           [ 3.,  0.]], dtype=float32)
    """
    layout, payload = open_array(data)
    if layout.size > max_size:
        raise DecodeError(
            f"message holds {layout.size} values, more than max_size={max_size}; pass a larger"
            " max_size if you trust the sender"
        )
    return TernaryCodec().decode(payload, layout).to_dense().reshape(layout.shapes[0])


def open_array(data: bytes) -> tuple[Layout, bytes]:
    """Return the layout of a compressed array, and the payload of its message.

    Raises:
        DecodeError: the bytes are not a compressed array.

    """
    kind, reader = unseal(data)
    if kind != ARRAY:
        raise DecodeError(f"not a compressed array but a message of kind {kind}")
    return Layout(("array",), (_read_shape(reader),)), reader.rest()


def _read_shape(reader: Reader) -> tuple[int, ...]:
    axes = reader.varint()
    if axes > _MAX_AXES:
        raise DecodeError(f"an array has at most {_MAX_AXES} axes, got {axes}")
    shape = tuple(reader.varint() for _ in range(axes))
    if math.prod(side or 1 for side in shape) >= 1 << 48:
        raise DecodeError(f"an array of shape {shape} is too large for any memory")
    return shape
