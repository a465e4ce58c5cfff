"""Candidates of a search."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from fedtern.data.environment import Environment
from fedtern.tuning import Grid
from fedtern.tuning.grid import beyond, default_p_down

BASE = Environment()


def test_the_default_broadcast_shares_balance_uploads_and_missed_broadcasts():
    assert default_p_down(1 / 400, BASE) == (1 / 400, 1 / 4000)
    assert default_p_down(1 / 25, Environment(participation=0.05)) == (1 / 25, 1 / 500)


def test_with_full_participation_there_is_one_default_broadcast_share():
    assert default_p_down(1 / 25, Environment(participation=1)) == (1 / 25,)


def test_the_default_grid_of_stc_has_the_smallest_messages():
    found = Grid().methods("stc", BASE)
    assert len(found) == 18
    assert {(m["codec"], m["magnitudes"]) for m in found} == {("adaptive", "powers")}


def test_parameters_given_with_the_method_are_fixed():
    found = Grid(local_steps=[5]).methods("stc:codec=golomb,p_up=1/10,scope=tensor", BASE)
    assert {(m["scope"], m["p_up"], m.get("codec", "golomb")) for m in found} == {
        ("tensor", 0.1, "golomb")
    }
    assert [m["p_down"] for m in found] == [0.1, 0.01]


def test_given_broadcast_shares_are_combined_with_each_upload_share():
    found = Grid([1], [1 / 10, 1 / 20], [1 / 5, 1 / 50]).methods("stc", BASE)
    assert [(m["p_up"], m["p_down"]) for m in found] == [
        (0.1, 0.2), (0.1, 0.02), (0.05, 0.2), (0.05, 0.02)
    ]  # fmt: skip


def test_repeated_values_give_one_candidate():
    assert len(Grid([1, 1], [0.1, 1 / 10], [0.1]).methods("stc", BASE)) == 1


@pytest.mark.parametrize(
    ("method", "searched"),
    [("fedavg", {"local_steps"}), ("topk", {"local_steps", "p_up", "p_down"}),
     ("sbc", {"local_steps", "p"}), ("sparseloco", {"local_steps", "p", "p_down"})],
)  # fmt: skip
def test_other_methods_are_searched_by_the_parameters_that_they_have(method, searched):
    found = Grid().methods(method, BASE)
    varied = {key for key in found[0] if len({each[key] for each in found}) > 1}
    assert varied == searched


@pytest.mark.parametrize(
    ("values", "method", "message"),
    [
        ({}, "signsgd", "'signsgd' has none of the parameters local_steps, p_up and p_down"),
        ({}, "stx", "Unknown method 'stx'. Did you mean 'stc'"),
        ({"p_up": [0.1]}, "fedavg", "'fedavg' has no parameter p_up"),
        ({"p_up": [0.1]}, "stc:p_up=1/5", "p_up is fixed to 1/5 by the method"),
    ],
)
def test_methods_that_cannot_be_searched_are_refused(values, method, message):
    with pytest.raises(ValueError, match=message):
        Grid(**values).methods(method, BASE)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"p_up": []}, "p_up has no values"),
        ({"p_up": [0.1, 2.0]}, r"p_up must be fractions in \(0, 1\], got 2.0"),
        ({"p_down": [0.0]}, r"p_down must be fractions in \(0, 1\], got 0.0"),
        ({"p_down": [float("nan")]}, "p_down must be fractions"),
        ({"local_steps": [0]}, "local_steps must be whole numbers of at least 1, got 0"),
        ({"local_steps": [1.5]}, "local_steps must be whole numbers of at least 1, got 1.5"),
        ({"local_steps": [True]}, "local_steps must be whole numbers"),
    ],
)
def test_empty_grids_and_invalid_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Grid(**values)


@pytest.mark.parametrize(
    ("values", "chosen", "further"),
    [
        ([1, 5, 25], 25, 125),
        ([5, 25], 5, 1),
        ([1, 5], 1, None),
        ([0.01, 0.04], 0.01, 1 / 400),
        ([0.01, 0.5], 0.5, 1.0),
        ([0.5, 1.0], 1.0, None),
        ([0.01, 0.04, 0.1], 0.04, None),
    ],
)
def test_the_value_beyond_an_edge_continues_the_grid(values, chosen, further):
    assert beyond(values, chosen) == further
