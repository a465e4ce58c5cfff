from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtern.core.codecs.golomb import encode_positions, golomb_width
from fedtern.core.kernels import (
    count_touched,
    measure_keys,
    nest_keys,
    sign_touches,
    sparse_merge,
    split_keys,
)

SIZES = [1, 2, 40, 2**11, 2**11 + 1, 865_482, 2**23, 10**8, 2**33]


@st.composite
def updates(draw):
    """A size, and positions below it that several updates touch, often the same ones."""
    size = draw(st.sampled_from(SIZES))
    near = draw(st.integers(1, min(size, 60)))
    places = st.one_of(st.integers(0, near - 1), st.integers(0, size - 1))
    turns = draw(st.lists(st.sets(places, min_size=1, max_size=30).map(sorted), min_size=1))
    return size, turns


def merged(size, turns):
    indices = np.concatenate([np.array(t, np.int64) for t in turns])
    values = np.arange(indices.size, dtype=np.float32)
    ends = np.cumsum([len(t) for t in turns])
    out = np.empty_like(indices), np.empty(indices.size, np.int32), np.empty_like(values)
    sparse_merge(indices, values, ends, size, *out)
    return out


@given(updates())
def test_touches_are_sorted_by_position_and_then_by_turn(given_updates):
    size, turns = given_updates
    touches = [(place, turn) for turn, places in enumerate(turns) for place in places]
    order = sorted(range(len(touches)), key=lambda i: touches[i])
    positions, turn, values = merged(size, turns)
    assert list(zip(positions.tolist(), turn.tolist(), strict=True)) == sorted(touches)
    assert values.tolist() == order  # each value has gone where its touch went


@given(updates())
def test_keys_are_measured_nested_and_split_as_division_would(given_updates):
    size, turns = given_updates
    number = len(turns)
    positions, turn, _ = merged(size, turns)
    different = sorted({place for places in turns for place in places})
    assert count_touched(positions) == len(different)
    touched, cells = np.empty(len(different), np.int64), np.empty(positions.size, np.int64)
    nest_keys(positions, turn, number, touched, cells)
    assert touched.tolist() == different
    row = np.searchsorted(touched, positions)
    assert np.array_equal(cells, row * number + turn)
    keys = positions * number + turn
    parts = [(keys, size * number), (touched, size), (cells, touched.size * number)]
    widths = [golomb_width(part.size, domain) for part, domain in parts]
    bits = measure_keys(positions, turn, number, *widths)
    for (part, domain), width, quotients in zip(parts, widths, bits, strict=True):
        length = (part.size * width + 7) // 8 + (quotients + 7) // 8
        assert length == len(encode_positions(part, domain))
    rows, again = np.empty_like(positions), np.empty_like(turn)
    assert split_keys(keys, number, rows, again) == len(different)
    assert np.array_equal(rows, positions)
    assert np.array_equal(again, turn)


@pytest.mark.parametrize("number", [1, 3, 7, 10, 49, 2**24 - 1, 2**24])
def test_keys_beyond_what_a_float_can_tell_apart_are_split_exactly(number):
    near = np.array([0, 1, number - 1, number, 2**53 - 1, 2**53 + 1, 2**60 + 3, 2**62 - 1])
    keys = np.unique(near.astype(np.int64))
    rows, turn = np.empty_like(keys), np.empty(keys.size, np.int32)
    split_keys(keys, number, rows, turn)
    assert np.array_equal(rows, keys // number)
    assert np.array_equal(turn, keys % number)


def signed(mus, positions=(0, 1, 1, 5), turn=(1, 0, 1, 1), signs=0b0101, ends=(2, 6)):
    values = np.empty(len(positions), np.float32)
    good = sign_touches(
        np.array(positions, np.int64),
        np.array(turn, np.int32),
        np.array([signs], np.uint8),
        np.array(mus, np.float32),
        np.array(ends, np.int64),
        values,
    )
    return bool(good), values.tolist()


def test_touches_have_the_magnitude_of_their_turn_and_segment():
    assert signed([[1, 0], [2, 3]]) == (True, [2, -1, 2, -3])


@pytest.mark.parametrize(
    "mus",
    [[[1, 4], [2, 3]], [[0, 0], [2, 3]], [[-1, 0], [2, 3]], [[1, -1], [2, 3]]],
    ids=["unused", "missing", "negative", "negative and unused"],
)
def test_a_magnitude_that_fits_no_touch_is_refused(mus):
    assert not signed(mus)[0]
