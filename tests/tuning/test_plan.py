"""Plans of a search."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from fedtern.tuning import Cost, Grid, Plan

TWO = Grid(local_steps=[1], p_up=[1 / 10])


def test_each_rung_keeps_a_third_and_trains_three_times_as_long():
    plan = Plan.of("logistic-mnist", budget=4500, evaluate_every=10)
    assert plan.rungs == ((500, 6), (1500, 2), (4500, 2))


def test_every_rung_ends_with_an_evaluation():
    plan = Plan.of("logistic-mnist", budget=4321)
    (every,) = {each.evaluate_every for each in plan.experiments}
    assert all(rung.iterations % every == 0 for rung in plan.rungs)


def test_a_budget_of_the_whole_run_ends_with_the_run():
    plan = Plan.of("logistic-mnist", budget=5000)
    assert plan.budget == plan.experiments[0].iterations == 5000


def test_a_small_budget_has_fewer_rungs_by_default():
    assert [len(Plan.of("logistic-digits", grid=Grid([steps])).rungs) for steps in (1, 25)] == [
        3,
        2,
    ]


def test_candidates_differ_only_in_the_parameters_of_the_method():
    plan = Plan.of("logistic-mnist", seed=3, learning_rate=0.5, target=0.9)
    first = plan.experiments[0].to_json()
    for each in plan.experiments:
        assert {**each.to_json(), "method": None} == {**first, "method": None}
    assert list(plan.searched) == ["p_up", "p_down", "local_steps"]


@pytest.mark.parametrize(
    ("given", "cost"),
    [
        ({}, Cost(1, 1)),
        ({"minimise": "bytes-up"}, Cost(1, 0)),
        ({"minimise": "bytes-down"}, Cost(0, 1)),
        ({"down_weight": 0.25}, Cost(1, 0.25)),
    ],
)
def test_the_objective_weights_the_two_directions(given, cost):
    assert Plan.of("logistic-digits", grid=TWO, **given).cost == cost


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"budget": 200, "rungs": 3},
            "budget 200 is too small: .* 22 iterations, 0 rounds with 25",
        ),
        ({"budget": 1001}, "budget must be from 1 to 1000, .* got 1001"),
        ({"budget": 0}, "budget must be from 1 to 1000, .* got 0"),
        ({"rungs": 0}, "rungs must be at least 1, got 0"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"evaluate_every": 400}, "evaluate_every 400 is too long"),
        ({"minimise": "seconds"}, "Unknown objective 'seconds'"),
        ({"minimise": "bytes-up", "down_weight": 2.0}, "down_weight 2 applies to minimise 'bytes'"),
        ({"down_weight": -1.0}, "down_weight must be a number of at least 0, got -1"),
        ({"target": float("nan")}, "target must be a finite number, got nan"),
        ({"target": 0.9, "within": 1.0}, "leave it out, or leave out target 0.9"),
        ({"within": -1.0}, r"within must be in \[0, 100\), got -1"),
        ({"task": "no-task"}, "Unknown task 'no-task'"),
        ({"grid": Grid([1], [0.1], [0.1])}, "the grid has one candidate, stc:p_up=1/10"),
    ],
)
def test_invalid_settings_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Plan.of(**{"task": "logistic-digits", **given})
