"""Datasets without classes, and inputs that are not standardised."""

from __future__ import annotations

import numpy as np
import pytest

from fedtern.data import Dataset
from fedtern.data.environment import Environment

X = np.arange(80, dtype=np.float32).reshape(40, 2)
NO_CLASSES = Dataset("any", X, X, X[:4], X[:4], None, groups=np.arange(40) % 5, standardise=False)


def test_targets_may_have_any_shape_and_dtype():
    assert NO_CLASSES.train_labels.shape == (40, 2)
    assert NO_CLASSES.classes.tolist() == [0] * 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_labels": X[:4, :1]}, r"targets of the same shape, got \(2,\) and \(1,\)"),
        ({"train_labels": X[:4]}, "train_inputs has 40 rows for 4 labels"),
        ({"train_labels": np.array("x")}, "train_labels must be an array of numbers with a row"),
        ({"train_labels": ["a"] * 40}, "train_labels must be an array of numbers .* of <U1"),
        ({"scale": 255.0}, "scale 255.0, .* have no effect with standardise=False"),
        ({"groups": [1, 2]}, "groups has 2 rows for 40 labels"),
    ],
)
def test_parts_that_do_not_fit_are_an_error(change, message):
    fields = {
        "name": "any", "train_inputs": X, "train_labels": X, "test_inputs": X[:4],
        "test_labels": X[:4], "num_classes": None, "standardise": False,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        Dataset(**{**fields, **change})


@pytest.mark.parametrize("split", ["classes", "iid", "natural"])
def test_data_without_classes_is_split_at_random_or_by_group(split):
    dealt = Environment(clients=5, participation=1, split=split).split_dataset(NO_CLASSES, 0)
    assert dealt.sizes == (8, 8, 8, 8, 8)
    assert sorted(np.concatenate(dealt.clients).tolist()) == list(range(40))


@pytest.mark.parametrize("options", [{"classes_per_client": 2}, {"split": "dirichlet"}])
def test_a_split_by_class_needs_classes(options):
    environment = Environment(clients=5, participation=1, **options)
    with pytest.raises(ValueError, match="needs classes, but the targets of dataset 'any' are not"):
        environment.split_dataset(NO_CLASSES, 0)
