"""Element types of a model's tensors, and their conversion from and to float32.

A dtype is named as NumPy and PyTorch name it. NumPy itself has no bfloat16: such arrays have the
dtype of the package ml_dtypes, which JAX uses, or hold the bits as uint16.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import NonFiniteError

Overflow = Literal["refuse", "saturate"]
"""What to do with a value that is too large for a dtype: raise an error, or use the largest."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DTYPES = (*FLOATS, *_INTEGERS, "bool")
"""Names of all dtypes that a tensor may have."""

_LARGEST_BFLOAT16 = np.uint32(0x7F7F0000).view(np.float32)


def check_dtype(name: str, tensor: str) -> str:
    """Return a dtype's name; raise a ``ValueError`` that names the tensor for an unknown one."""
    if name not in DTYPES:
        raise ValueError(
            f"tensor {tensor!r} is {name}; supported are {', '.join(DTYPES)}: convert it, or leave"
            " it out of the model"
        )
    return name


def is_float(dtype: str) -> bool:
    """Return whether a dtype is a floating-point type."""
    return dtype in FLOATS


def storage_dtype(dtype: str) -> np.dtype[Any]:
    """Return the little-endian NumPy dtype that holds the bits of a dtype."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")


def to_storage(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return a contiguous copy of an array in the dtype that holds its bits."""
    if dtype == "bfloat16" and array.dtype != np.uint16:
        array = np.ascontiguousarray(array).view(np.uint16).reshape(array.shape)
    return np.array(array, storage_dtype(dtype), order="C")


def to_float32(array: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Convert an array of a floating-point dtype; values beyond float32 become infinite.

    >>> to_float32(np.array([0x3F80, 0xC020], np.uint16), "bfloat16")
    array([ 1. , -2.5], dtype=float32)
    """
    if dtype == "bfloat16":
        bits = to_storage(array, dtype).astype(np.uint32) << 16
        return bits.view(np.float32)
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def from_float32(
    values: NDArray[np.float32], dtype: str, overflow: Overflow, tensor: str
) -> NDArray[Any]:
    """Round float32 values to a floating-point dtype, to the nearest and ties to even.

    Args:
        values: finite values.
        dtype: the dtype; bfloat16 is returned as uint16.
        overflow: what to do with values that the dtype cannot hold.
        tensor: name of the tensor, for the error message.

    Raises:
        NonFiniteError: a value is too large for the dtype, and ``overflow`` is "refuse".

    >>> from_float32(np.float32([1.0, -2.5]), "bfloat16", "refuse", "w")
    array([16256, 49184], dtype=uint16)
    >>> from_float32(np.float32([7e4]), "float16", "refuse", "w")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedtern.core.errors.NonFiniteError: value 70000.0 of tensor 'w' is too large for float16; ...
    """
    if dtype in ("float32", "float64"):
        return values.astype(dtype)
    limit = np.float32(np.finfo(np.float16).max) if dtype == "float16" else _LARGEST_BFLOAT16
    with np.errstate(over="ignore"):
        rounded = _round_to_16_bits(values, dtype)
        is_too_large = _is_infinite(rounded, dtype)
        if not is_too_large.any():
            return rounded
        if overflow == "refuse":
            raise NonFiniteError(
                f"value {values[is_too_large].flat[0]} of tensor {tensor!r} is too large for"
                f' {dtype}; pass overflow="saturate" to use the largest value instead, or train in'
                " float32"
            )
        return _round_to_16_bits(np.clip(values, -limit, limit), dtype)


def _is_infinite(array: NDArray[Any], dtype: str) -> NDArray[np.bool_]:
    bits = array.view(np.uint16)
    exponent = 0x7C00 if dtype == "float16" else 0x7F80
    infinite: NDArray[np.bool_] = (bits & 0x7FFF) >= exponent
    return infinite


def _round_to_16_bits(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    if dtype == "float16":
        return values.astype(np.float16)
    bits = np.array(values, np.float32, order="C").view(np.uint32)
    # Round to nearest, ties to even: add just less than half of the last kept bit, plus that bit.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.asarray(rounded, np.uint16)  # operators return scalars for arrays without axes
