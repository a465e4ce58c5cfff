"""Which candidates a rung drops."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from fedtern.tuning.curve import Curve, Point
from fedtern.tuning.elimination import drop, excess


def line(cost: float, value: float) -> Curve:
    """A curve of ten evaluations that rises evenly to a value, at a cost."""
    return Curve(tuple(Point(cost * i / 10, value * i / 10) for i in range(1, 11)))


def dropped(curves, keep, target=math.inf, within=0.0):
    return drop(curves, keep, target, within)


def test_a_slow_candidate_with_few_bytes_stays():
    curves = {"slow": line(10, 0.3), "fast": line(1000, 0.9), "worse": line(2000, 0.85)}
    assert dropped(curves, 2) == ["worse"]


def test_the_most_accurate_candidate_stays_whatever_it_costs():
    curves = {"cheap": line(10, 0.8), "medium": line(50, 0.85), "expensive": line(1e6, 0.9)}
    assert "expensive" not in dropped(curves, 1)


def test_the_candidate_that_needs_the_most_bytes_for_its_accuracy_goes_first():
    curves = {"best": line(100, 0.9), "twice": line(180, 0.8), "thrice": line(240, 0.7)}
    assert dropped(curves, 1) == ["thrice", "twice"]


def test_of_two_equal_candidates_one_stays():
    curves = {"one": line(100, 0.9), "two": line(100, 0.9), "worse": line(150, 0.9)}
    gone = dropped(curves, 1)
    assert gone[0] == "worse"
    assert len(gone) == 2


def test_the_last_gain_of_a_flat_curve_does_not_decide():
    flat = Curve((Point(1, 0.88), Point(2, 0.895), Point(20, 0.9)))
    curves = {"flat": flat, "other": line(15, 0.91), "best": line(100, 0.92)}
    assert excess("flat", curves, math.inf, within=0.0) > 1
    assert excess("flat", curves, math.inf, within=0.02) < 1


def test_candidates_that_reached_the_target_are_compared_there():
    curves = {"cheap": line(10, 0.8), "more accurate": line(100, 0.95)}
    assert dropped(curves, 1, target=0.8) == ["more accurate"]
    assert dropped(curves, 1) == ["cheap"]


def test_a_candidate_without_a_finite_value_goes_first():
    curves = {"diverged": Curve((Point(1, -math.inf),)), "expensive": line(1e9, 0.1)}
    assert dropped(curves, 1) == ["diverged"]


def test_a_candidate_without_cost_is_not_dropped_for_one_with_costs():
    curves = {"free": line(0, 0.5), "paid": line(10, 0.5)}
    assert dropped(curves, 1) == ["paid"]


def test_no_candidate_goes_if_all_may_stay():
    assert dropped({"one": line(1, 0.5), "two": line(9, 0.5)}, 2) == []
