"""Kernels that merge sparse updates, compared with sorting and dividing in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtern.core.codecs.golomb import encode_positions, golomb_width
from fedtern.core.kernels import (
    count_distinct,
    fill_ternary_values,
    measure_keys,
    nest_keys,
    sort_entries,
    split_keys,
)

SIZES = [1, 2, 40, 2**11, 2**11 + 1, 865_482, 2**23, 10**8, 2**33]


@st.composite
def overlapping_updates(draw):
    """A size, and for each update its ascending positions; updates often share positions."""
    size = draw(st.sampled_from(SIZES))
    near = draw(st.integers(1, min(size, 60)))
    positions = st.one_of(st.integers(0, near - 1), st.integers(0, size - 1))
    updates = draw(st.lists(st.sets(positions, min_size=1, max_size=30).map(sorted), min_size=1))
    return size, updates


def merge(size, updates):
    indices = np.concatenate([np.array(update, np.int64) for update in updates])
    values = np.arange(indices.size, dtype=np.float32)
    ends = np.cumsum([len(update) for update in updates])
    positions = np.empty_like(indices)
    update_indices = np.empty(indices.size, np.int32)
    sorted_values = np.empty_like(values)
    sort_entries(indices, values, ends, size, positions, update_indices, sorted_values)
    return positions, update_indices, sorted_values


@given(overlapping_updates())
def test_entries_are_sorted_by_position_and_then_by_update(size_and_updates):
    size, updates = size_and_updates
    entries = [(position, i) for i, update in enumerate(updates) for position in update]
    order = sorted(range(len(entries)), key=lambda j: entries[j])
    positions, update_indices, values = merge(size, updates)
    assert list(zip(positions.tolist(), update_indices.tolist(), strict=True)) == sorted(entries)
    assert values.tolist() == order  # each value has moved with its entry


@given(overlapping_updates())
def test_keys_are_measured_nested_and_split_like_plain_division(size_and_updates):
    size, updates = size_and_updates
    num_updates = len(updates)
    positions, update_indices, _ = merge(size, updates)
    expected = sorted({position for update in updates for position in update})
    assert count_distinct(positions) == len(expected)
    distinct = np.empty(len(expected), np.int64)
    cells = np.empty(positions.size, np.int64)
    nest_keys(positions, update_indices, num_updates, distinct, cells)
    assert distinct.tolist() == expected
    row = np.searchsorted(distinct, positions)
    assert np.array_equal(cells, row * num_updates + update_indices)
    keys = positions * num_updates + update_indices
    parts = [
        (keys, size * num_updates),
        (distinct, size),
        (cells, distinct.size * num_updates),
    ]
    widths = [golomb_width(part.size, domain) for part, domain in parts]
    bits = measure_keys(positions, update_indices, num_updates, *widths)
    for (part, domain), width, quotients in zip(parts, widths, bits, strict=True):
        length = (part.size * width + 7) // 8 + (quotients + 7) // 8
        assert length == len(encode_positions(part, domain))
    rows = np.empty_like(positions)
    remainders = np.empty_like(update_indices)
    assert split_keys(keys, num_updates, rows, remainders) == len(expected)
    assert np.array_equal(rows, positions)
    assert np.array_equal(remainders, update_indices)


@pytest.mark.parametrize("num_updates", [1, 3, 7, 10, 49, 2**24 - 1, 2**24])
def test_keys_beyond_float_precision_are_split_exactly(num_updates):
    near = [0, 1, num_updates - 1, num_updates, 2**53 - 1, 2**53 + 1, 2**60 + 3, 2**62 - 1]
    keys = np.unique(np.array(near, np.int64))
    rows = np.empty_like(keys)
    remainders = np.empty(keys.size, np.int32)
    split_keys(keys, num_updates, rows, remainders)
    assert np.array_equal(rows, keys // num_updates)
    assert np.array_equal(remainders, keys % num_updates)


def ternary_values(mus):
    """Values of four entries: two updates, two segments that end at 2 and 6."""
    values = np.empty(4, np.float32)
    valid = fill_ternary_values(
        np.array([0, 1, 1, 5], np.int64),
        np.array([1, 0, 1, 1], np.int32),
        np.array([0b0101], np.uint8),
        np.array(mus, np.float32),
        np.array([2, 6], np.int64),
        values,
    )
    return bool(valid), values.tolist()


def test_entries_get_the_magnitude_of_their_update_and_segment():
    assert ternary_values([[1, 0], [2, 3]]) == (True, [2, -1, 2, -3])


@pytest.mark.parametrize(
    "mus",
    [[[1, 4], [2, 3]], [[0, 0], [2, 3]], [[-1, 0], [2, 3]], [[1, -1], [2, 3]]],
    ids=["unused", "missing", "negative", "negative and unused"],
)
def test_magnitudes_that_fit_no_entry_are_refused(mus):
    assert not ternary_values(mus)[0]
