"""Tables of numbers for regression."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedtern.core.extras import require
from fedtern.data.dataset import Dataset

TARGET_MEAN = 152.0
"""Subtracted from the progression of diabetes."""

TARGET_SCALE = 77.0
"""Divides the progression of diabetes, so that targets have a variance of about 1."""

TEST_VARIANCE = 1.0519276
"""Variance of the test targets of ``diabetes``, for the coefficient of determination."""

_NUM_TEST_PATIENTS = 82


def diabetes(data_dir: str | Path | None = None) -> Dataset:
    """Load scikit-learn's diabetes data: 360 + 82 patients with ten measurements each.

    The target is the progression of the disease after a year (Efron et al., 2004), standardised:
    ``(progression - 152) / 77``. The data are part of scikit-learn, so ``data_dir`` is ignored. The
    test examples are the first 82 of ``numpy.random.default_rng(0).permutation(442)``.
    """
    sklearn = require("sklearn.datasets", "torch", "the diabetes dataset")
    bunch = sklearn.load_diabetes()
    inputs = bunch.data.astype(np.float32)
    # A column, because models have one output for each example.
    targets = ((bunch.target - TARGET_MEAN) / TARGET_SCALE).astype(np.float32)[:, None]
    order = np.random.default_rng(0).permutation(len(targets))
    test = order[:_NUM_TEST_PATIENTS]
    train = order[_NUM_TEST_PATIENTS:]
    return Dataset(
        "diabetes", inputs[train], targets[train], inputs[test], targets[test], num_classes=None,
        # scikit-learn scales columns to a sum of squares of 1.
        scale=442**-0.5,
    )  # fmt: skip
