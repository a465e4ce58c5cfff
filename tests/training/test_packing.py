"""Arrays of several dtypes in one array of bytes."""

from __future__ import annotations

import numpy as np
import pytest

from fedtern.training.packing import Packing

ARRAYS = {"mean": np.arange(3, dtype=np.float32), "flag": np.array(True), "n": np.array([7, 8])}


def test_arrays_survive_packing_at_aligned_positions():
    packing = Packing.of(ARRAYS)
    blob = packing.pack(ARRAYS)
    assert blob.nbytes == packing.nbytes == 16 + 8 + 16
    for name, view in packing.views(blob).items():
        assert view.dtype == ARRAYS[name].dtype
        assert np.array_equal(view, ARRAYS[name])


def test_packings_can_be_joined():
    both = Packing.of({"a": ARRAYS["mean"]}) + Packing.of({"b": ARRAYS["n"]})
    blob = np.ones(both.nbytes, np.uint8)
    assert both.pack({"a": ARRAYS["mean"], "b": ARRAYS["n"]}, blob) is blob
    assert both.views(blob)["b"].tolist() == [7, 8]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": np.zeros(4, np.float32)}, r"'mean' was float32\[3\] and now is float32\[4\]"),
        ({"n": np.zeros(2)}, r"tensor 'n' was int64\[2\] and now is float64\[2\]"),
        ({"n": None}, r"tensor 'n' was int64\[2\] and now is missing"),
    ],
)
def test_a_changed_array_is_named_with_both_shapes_and_dtypes(change, message):
    with pytest.raises(ValueError, match=message):
        Packing.of(ARRAYS).pack({**ARRAYS, **change})


def test_a_blob_of_another_size_is_an_error():
    with pytest.raises(ValueError, match="state has 3 bytes, expected 40"):
        Packing.of(ARRAYS).views(np.zeros(3, np.uint8))
