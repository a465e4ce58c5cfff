"""The initial model in fewer bytes: both sides start from weights that were rounded.

A client without weights downloads the whole model, and in a short federation this is most of its
traffic. A server can round the initial weights to float16, or to eight bits with one scale for each
row of a tensor. It then starts from the rounded weights itself, so that nothing differs later.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtern.core.dtypes import from_float32
from fedtern.core.errors import DecodeError
from fedtern.core.layout import Layout, Vector
from fedtern.core.updates.factors import matrix_shapes
from fedtern.core.wire import Reader, check_floats, floats

Precision = Literal["exact", "float16", "int8"]
"""How precisely the initial weights are sent."""

# The first byte of an encoded initial model.
_FLOAT16 = 1
_INT8 = 2
_PRECISIONS: dict[int, Precision] = {_FLOAT16: "float16", _INT8: "int8"}
_LEVELS = 127
_MAX_SCALE = 2.0**93  # so that every weight stays below 2**100


def encode_initial(weights: Vector, layout: Layout, precision: Precision) -> bytes | None:
    """Encode initial weights; None if they are sent exactly, as any other model.

    Raises:
        NonFiniteError: a weight is too large for the precision.
        ValueError: the precision is unknown.

    """
    if precision == "exact":
        return None
    if precision == "float16":
        parts = [
            from_float32(tensor, "float16", "refuse", name).astype("<f2", copy=False).tobytes()
            for name, tensor in layout.unflatten(weights).items()
        ]
        return bytes([_FLOAT16]) + b"".join(parts)
    if precision == "int8":
        return bytes([_INT8]) + _encode_rows(weights, layout)
    raise ValueError(f'initial must be "exact", "float16" or "int8", got {precision!r}')


def read_initial(reader: Reader, layout: Layout) -> Vector:
    """Read encoded initial weights.

    Raises:
        DecodeError: the bytes are not an encoded initial model.

    """
    kind = reader.byte()
    if kind == _FLOAT16:
        narrow = np.frombuffer(reader.take(2 * layout.size), "<f2")
        return check_floats(narrow.astype(np.float32), layout.name_at)
    if kind == _INT8:
        return _read_rows(reader, layout)
    raise DecodeError(f"unknown encoding {kind} of the initial model")


def initial_precision(data: bytes) -> Precision:
    """Return the precision of an encoded initial model.

    Raises:
        DecodeError: the bytes are not an encoded initial model.

    """
    kind = Reader(data).byte()
    if kind not in _PRECISIONS:
        raise DecodeError(f"unknown encoding {kind} of the initial model")
    return _PRECISIONS[kind]


def round_initial(weights: Vector, layout: Layout, precision: Precision) -> Vector:
    """Return the weights that both sides start from.

    A client that has the initial model itself passes it through this function.
    """
    data = encode_initial(weights, layout, precision)
    return weights if data is None else read_initial(Reader(data), layout)


def _row_lengths(layout: Layout) -> NDArray[np.int64]:
    """Return the number of values in each row: the first axis of a tensor by all others."""
    shapes = [shape for shape in matrix_shapes(layout) if math.prod(shape)]
    rows = np.array([rows for rows, _ in shapes], np.int64)
    return np.repeat(np.array([columns for _, columns in shapes], np.int64), rows)


def _encode_rows(weights: Vector, layout: Layout) -> bytes:
    """Encode one scale per row, then one byte per value."""
    lengths = _row_lengths(layout)
    if not lengths.size:
        return b""
    starts = np.cumsum(lengths) - lengths
    largest = np.maximum.reduceat(np.abs(weights), starts)
    scales = (largest / np.float32(_LEVELS)).astype(np.float32)
    if (scales > _MAX_SCALE).any():
        index = int(np.argmax(np.abs(weights)))
        raise layout.non_finite_error(index, float(weights[index]))
    divisors = np.where(scales > 0, scales, np.float32(1))
    levels = np.rint(weights / np.repeat(divisors, lengths))
    values: bytes = np.clip(levels, -_LEVELS, _LEVELS).astype(np.int8).tobytes()
    return floats(scales) + values


def _read_rows(reader: Reader, layout: Layout) -> Vector:
    lengths = _row_lengths(layout)
    scales = reader.floats(lengths.size)
    levels = np.frombuffer(reader.take(layout.size), np.int8)
    if not ((scales >= 0) & (scales <= _MAX_SCALE)).all():
        raise DecodeError("the scales of the initial model must be in [0, 2**93]")
    if (levels < -_LEVELS).any():
        raise DecodeError("the levels of the initial model must be in [-127, 127]")
    return np.repeat(scales, lengths) * levels.astype(np.float32)
