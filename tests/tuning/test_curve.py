"""Learning curves against cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from fedtern.data.metric_spec import MetricSpec
from fedtern.runs import Evaluation
from fedtern.tuning.curve import Cost, Curve, Point


def curve(*points: tuple[float, float]) -> Curve:
    return Curve(tuple(Point(*point) for point in points))


def evaluation(up: float, down: float, **metrics: float) -> Evaluation:
    return Evaluation(1, 1, 0.5, math.nan, 0, 0, up, down, 0.0, 0.0, 0, {}, metrics)


def test_a_later_setback_does_not_raise_the_cost_of_a_value():
    with_setback = curve((10, 0.5), (20, 0.8), (30, 0.2), (40, 0.9))
    without = curve((10, 0.5), (20, 0.8), (30, 0.8), (40, 0.9))
    values = [0.1, 0.5, 0.6, 0.8, 0.85, 0.9, 0.95]
    assert [with_setback.cost_of(v) for v in values] == [without.cost_of(v) for v in values]


def test_the_cost_between_two_evaluations_does_not_depend_on_their_distance():
    fine = curve(*((c, c / 100) for c in range(10, 101, 10)))
    coarse = curve((10, 0.1), (100, 1.0))
    assert fine.cost_of(0.55) == pytest.approx(coarse.cost_of(0.55))


def test_a_value_below_the_first_evaluation_costs_as_much_as_that_evaluation():
    assert curve((10, 0.5), (20, 0.6)).cost_of(0.1) == 10


def test_a_value_above_the_best_has_no_cost():
    assert curve((10, 0.5)).cost_of(0.500001) is None
    assert Curve().cost_of(0.0) is None


def test_evaluations_without_a_finite_metric_never_reach_a_value():
    found = Curve.of(
        [evaluation(1, 1, accuracy=math.nan), evaluation(2, 2, accuracy=0.5)], MetricSpec(), Cost()
    )
    assert (found.best, found.cost_of(0.5), found.cost_of(0.1)) == (0.5, 4, 4)


def test_lower_values_of_a_metric_such_as_perplexity_are_better():
    metric = MetricSpec("perplexity", "lower")
    found = Curve.of(
        [evaluation(1, 0, perplexity=30), evaluation(2, 0, perplexity=20)], metric, Cost()
    )
    assert found.cost_of(metric.quality(25)) == 1.5
    assert metric.value_of_quality(found.best) == 20


@pytest.mark.parametrize(("weights", "cost"), [((1, 1), 5), ((1, 0), 2), ((0, 1), 3), ((1, 2), 8)])
def test_cost_is_the_weighted_sum_of_both_directions(weights, cost):
    assert Cost(*weights).of(evaluation(2, 3)) == cost


def test_noise_is_the_standard_deviation_around_a_trend():
    rng = np.random.default_rng(0)
    values = np.linspace(0, 5, 4000) + 0.02 * rng.standard_normal(4000)
    assert curve(*enumerate(values)).noise == pytest.approx(0.02, rel=0.1)
