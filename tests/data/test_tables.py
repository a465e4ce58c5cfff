"""The data for regression."""

from __future__ import annotations

import numpy as np
import pytest

from fedtern.data import load
from fedtern.data.environment import Environment
from fedtern.data.tables import TARGET_MEAN, TARGET_SCALE, TEST_VARIANCE

pytest.importorskip("sklearn", reason="needs scikit-learn (the extra torch)")


def test_diabetes_has_a_standardised_target_for_each_patient():
    data = load("diabetes")
    assert data.train_inputs.shape == (360, 10)
    assert data.train_labels.shape == (360, 1)
    assert data.test_labels.shape == (82, 1)
    assert data.train_labels.mean() == pytest.approx(0, abs=0.02)
    assert data.train_labels.std() == pytest.approx(1, abs=0.02)
    assert data.normalise(data.train_inputs).std(axis=0) == pytest.approx(np.ones(10), abs=0.03)


def test_targets_can_be_converted_to_the_units_of_scikit_learn():
    from sklearn.datasets import load_diabetes

    data = load("diabetes")
    found = np.concatenate([data.test_labels, data.train_labels])[:, 0] * TARGET_SCALE + TARGET_MEAN
    assert np.sort(found) == pytest.approx(np.sort(load_diabetes().target), abs=1e-4)


def test_the_constant_is_the_variance_of_the_test_targets():
    assert load("diabetes").test_labels.var(dtype=np.float64) == pytest.approx(TEST_VARIANCE)


def test_the_default_environment_splits_data_without_classes():
    assert Environment().split_dataset(load("diabetes"), 0).sizes == (3,) * 100
