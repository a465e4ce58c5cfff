"""A model as Flower has it, and as one flat vector."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord

from fedtern.core.layout import Layout, Vector


def layout_of(arrays: ArrayRecord) -> Layout:
    """Names and shapes of a model; one with anything but float32 in it is refused."""
    if not arrays:
        raise ValueError("initial_arrays hold no array: there is nothing to train")
    for name, array in arrays.items():
        if array.dtype != "float32":
            raise ValueError(
                f"array {name!r} is {array.dtype}; only float32 can be compressed: leave it out of"
                " the record (statistics like those of batch normalisation can stay on the node),"
                " or use group or layer normalisation"
            )
    return Layout(tuple(arrays), tuple(tuple(array.shape) for array in arrays.values()))


def to_vector(arrays: ArrayRecord, layout: Layout) -> Vector:
    """The values of arrays that fit a layout, whatever their order; others are refused by name."""
    missing = [name for name in layout.names if name not in arrays]
    unknown = [name for name in arrays if name not in layout.names]
    if missing or unknown:
        raise ValueError(
            f"the arrays lack {missing or 'nothing'} and have {unknown or 'nothing'} besides those"
            " of the server's model"
        )
    parts = []
    for name in layout.names:
        part = arrays[name].numpy()
        if not np.issubdtype(part.dtype, np.floating):
            raise ValueError(f"array {name!r} is {part.dtype}, expected float32")
        parts.append(part)
    with np.errstate(over="ignore"):  # refused when it is compressed, by name
        return layout.flatten(parts)


def to_arrays(vector: Vector, layout: Layout) -> ArrayRecord:
    """A copy of a vector as named arrays."""
    views = layout.unflatten(np.array(vector))
    return ArrayRecord({name: Array(view) for name, view in views.items()})
