"""Aggregations that tolerate lying clients."""

from __future__ import annotations

import numpy as np
import pytest

from fedtern.core.methods import ClippedMean, CoordinateMedian, Krum, TrimmedMean
from fedtern.core.methods.robust import _CHUNK
from fedtern.core.updates import Dense, Masked, Scaled, Sparse, Ternary


def dense(*rows):
    return [Dense(np.float32(row)) for row in rows]


HONEST = [[1, 2], [1.5, 2], [0.5, 2.5], [1, 1.5], [1, 2]]
LIE = [-1e15, 1e15]


def test_updates_are_clipped_to_a_constant_norm():
    updates = dense([3, 4], [0.3, 0.4])
    assert ClippedMean(1).combine(updates, [1, 1]) == pytest.approx([0.45, 0.6])
    weighted = ClippedMean(1, weighted=True)
    assert weighted.combine(updates, [3, 1]) == pytest.approx([0.525, 0.7])
    assert weighted.shares([3, 1]) == [0.75, 0.25]


@pytest.mark.parametrize(
    "aggregate", [CoordinateMedian(), TrimmedMean(0.2), Krum(1), Krum(1, chosen=3)]
)
def test_one_liar_among_six_has_no_effect_beyond_the_honest_range(aggregate):
    result = aggregate.combine(dense(*HONEST, LIE), [1] * 5 + [2**53 - 1])
    assert (result >= np.min(HONEST, axis=0)).all()
    assert (result <= np.max(HONEST, axis=0)).all()
    assert aggregate.shares([1, 2]) == [0.5, 0.5]


def test_median_and_trimmed_mean_are_those_of_numpy():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((10, _CHUNK + 100)).astype(np.float32)
    updates = dense(*values)
    median = CoordinateMedian().combine(updates, [1] * 10)
    assert np.array_equal(median, np.median(values, axis=0).astype(np.float32))
    trimmed = TrimmedMean(0.2).combine(updates, [1] * 10)
    assert trimmed == pytest.approx(np.sort(values, axis=0)[2:8].mean(axis=0), abs=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_the_trimmed_mean_of_few_updates_is_their_mean(count):
    values = np.float32([[1, 5], [3, 7]])[:count]
    assert np.array_equal(TrimmedMean().combine(dense(*values), [1] * count), values.mean(axis=0))


@pytest.mark.parametrize(
    "update",
    [
        Sparse(4, np.array([1]), np.float32([1])),
        Ternary(4, np.array([1]), np.array([True]), np.float32([1])),
        Masked(4, 1, np.float32([1])),
        Scaled(Sparse(4, np.array([1]), np.float32([1])), 0.5),
    ],
)
@pytest.mark.parametrize("aggregate", [CoordinateMedian(), TrimmedMean()])
def test_the_median_of_sparse_updates_is_refused(aggregate, update):
    with pytest.raises(TypeError, match="zero for almost every weight"):
        aggregate.combine([update] * 3, [1] * 3)


def test_krum_chooses_the_update_that_is_closest_to_the_others():
    updates = dense([0, 0], [0, 1], [1, 0], [0.4, 0.4], [9, 9], [10, 10])
    assert Krum(1).combine(updates, [1] * 6).tolist() == pytest.approx([0.4, 0.4])


def test_krum_needs_enough_uploads():
    with pytest.raises(ValueError, match="needs at least 5 uploads in a round, got 4"):
        Krum(1).combine(dense(*HONEST[:4]), [1] * 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClippedMean(0),
        lambda: TrimmedMean(0.5),
        lambda: Krum(-1),
        lambda: Krum(1, chosen=0),
    ],
)
def test_parameters_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()
