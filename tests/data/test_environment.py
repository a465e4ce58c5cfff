"""The environment: validation of its options, and the splits it makes."""

from __future__ import annotations

import numpy as np
import pytest

from fedtern.data import Dataset
from fedtern.data.environment import SPLITS, Environment


@pytest.fixture
def dataset() -> Dataset:
    inputs = np.zeros((1500, 2), np.float32)
    labels = np.arange(1500) % 10
    return Dataset("zeros", inputs, labels, inputs[:10], labels[:10], num_classes=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "clients must be at least 1, got 0"),
        ({"clients": 2.5}, "clients must be of type int, got 2.5"),
        ({"participation": 0.0}, r"participation must be in \(0, 1\], got 0"),
        (
            {"clients": 20, "participation": 0.01},
            "participation 0.01 of 20 clients selects no client; use at least 0.05",
        ),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"split": "odd"}, "split must be one of classes, iid, dirichlet, natural, got 'odd'"),
        ({"public": 1.0}, r"public must be in \[0, 1\), got 1"),
    ],
)
def test_an_option_out_of_range_is_an_error_that_names_it(options, message):
    with pytest.raises(ValueError, match=message):
        Environment(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes_per_client": 11}, "between 1 and the number of classes, 10, got 11"),
        ({"clients": 5000}, "would get none of the 1500 examples; use fewer clients"),
        ({"split": "natural"}, "needs the groups of examples, but dataset 'zeros' has none"),
        ({"split": "natural", "public": 0.1}, "cannot be combined"),
    ],
)
def test_a_split_that_the_dataset_does_not_allow_is_an_error(dataset, options, message):
    with pytest.raises(ValueError, match=message):
        Environment(**options).split_dataset(dataset, 0)


@pytest.mark.parametrize("split", SPLITS)
def test_default_options_apply_to_every_split(split):
    environment = Environment(split=split)
    assert environment.check_options_apply() is environment


@pytest.mark.parametrize(
    "options",
    [
        {"gamma": 0.9, "alpha": 0.2, "classes_per_client": 2, "public": 0.1},
        {"gamma": 0.9, "alpha": 0.2, "split": "iid"},
        {"gamma": 0.9, "alpha": 0.2, "concentration": 2, "split": "dirichlet"},
    ],
)
def test_options_that_the_split_uses_are_accepted(options):
    Environment(**options).check_options_apply()


def test_an_option_that_the_split_does_not_use_is_an_error_with_the_splits_that_do():
    environment = Environment(split="natural", gamma=0.9)
    message = (
        'gamma 0.9 does not apply to split "natural"; leave it out, or use split "classes" or'
        ' "iid" or "dirichlet"'
    )
    with pytest.raises(ValueError, match=message):
        environment.check_options_apply()


@pytest.mark.parametrize("split", ["classes", "iid", "dirichlet"])
@pytest.mark.parametrize("public", [0.0, 0.1])
def test_the_same_seed_gives_the_same_split(dataset, split, public):
    environment = Environment(clients=12, classes_per_client=2, split=split, public=public)
    first = environment.split_dataset(dataset, 1)
    second = environment.split_dataset(dataset, 1)
    assert all(map(np.array_equal, first.clients, second.clients))


def test_integers_and_floats_of_the_same_value_give_equal_environments():
    assert Environment(gamma=1, concentration=2) == Environment(gamma=1.0, concentration=2.0)
