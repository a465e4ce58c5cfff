"""Conversion between Flower's records of arrays and flat vectors."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord

from fedtern.core.layout import Layout, Vector


def layout_of(arrays: ArrayRecord) -> Layout:
    """Return names and shapes of a model.

    Raises:
        ValueError: The record is empty, or an array is not float32.

    """
    if not arrays:
        raise ValueError("initial_arrays contain no array, so there is nothing to train")
    for name, array in arrays.items():
        if array.dtype != "float32":
            raise ValueError(
                f"array {name!r} is {array.dtype}; only float32 can be compressed. Leave it out of"
                " the record (statistics such as those of batch normalisation can stay on the"
                " node), or use group or layer normalisation"
            )
    return Layout(tuple(arrays), tuple(tuple(array.shape) for array in arrays.values()))


def to_vector(arrays: ArrayRecord, layout: Layout) -> Vector:
    """Flatten arrays in the order of a layout.

    Raises:
        ValueError: Names, shapes or dtypes do not fit the layout.

    """
    missing = [name for name in layout.names if name not in arrays]
    unknown = [name for name in arrays if name not in layout.names]
    if missing or unknown:
        raise ValueError(
            "the arrays do not fit the server's model:"
            f" missing {missing or 'none'}, unknown {unknown or 'none'}"
        )
    parts = []
    for name in layout.names:
        part = arrays[name].numpy()
        if not np.issubdtype(part.dtype, np.floating):
            raise ValueError(f"array {name!r} is {part.dtype}, expected float32")
        parts.append(part)
    # Compression refuses values that overflow float32, and names the tensor.
    with np.errstate(over="ignore"):
        return layout.flatten(parts)


def to_arrays(vector: Vector, layout: Layout) -> ArrayRecord:
    """Return a copy of a vector as named arrays."""
    views = layout.unflatten(np.array(vector))
    return ArrayRecord({name: Array(view) for name, view in views.items()})
