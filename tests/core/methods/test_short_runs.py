"""The method for a planned number of rounds."""

import pytest

from fedtern.core.methods import for_rounds


@pytest.mark.parametrize("rounds", [0, 1, 3, 10, 11, 49])
def test_few_rounds_send_every_value_on_a_grid(rounds):
    method = for_rounds(rounds)
    assert method.name == "grid"
    assert method.parameters["weighted"]


def test_fewer_rounds_have_a_finer_grid():
    assert for_rounds(3).parameters["step_up"] < for_rounds(40).parameters["step_up"]


@pytest.mark.parametrize(
    ("rounds", "p"), [(50, 0.16), (200, 0.04), (3_200, 1 / 400), (10**6, 1 / 400)]
)
def test_many_rounds_send_few_values_and_not_fewer_than_the_paper(rounds, p):
    method = for_rounds(rounds)
    assert method.name == "stc"
    assert method.parameters["p_up"] == method.parameters["p_down"] == pytest.approx(p)


def test_a_negative_number_of_rounds_is_refused():
    with pytest.raises(ValueError, match="num_rounds must not be negative, got -1"):
        for_rounds(-1)


@pytest.mark.parametrize("rounds", [5, 20, 1000])
def test_every_value_is_sent_at_any_number_of_rounds_if_the_caller_says_so(rounds):
    method = for_rounds(rounds, sparse=False)
    assert method.name == "grid"
    assert method.parameters["step_up"] == (0.7 if rounds == 5 else 1.0)
