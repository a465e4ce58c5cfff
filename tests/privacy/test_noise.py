"""Gaussian noise: distribution, determinism with a seed, freshness without one."""

from __future__ import annotations

import numpy as np
import pytest

from fedtern.privacy.noise import gaussian_noise

stats = pytest.importorskip("scipy.stats")

SIZE = 300_000


@pytest.mark.parametrize("key", [None, (7, 4, 0)], ids=["system", "seeded"])
def test_noise_has_the_stated_standard_deviation_and_is_gaussian(key):
    noise = gaussian_noise(SIZE, 3.0, key)
    # Five standard errors: fails by chance once in a million runs.
    assert abs(noise.mean()) < 5 * 3.0 / SIZE**0.5
    assert abs(noise.std() / 3.0 - 1) < 5 / (2 * SIZE) ** 0.5
    assert stats.kstest(noise / 3.0, "norm").pvalue > 1e-6


def test_values_of_the_system_noise_are_not_correlated():
    noise = gaussian_noise(SIZE, 1.0, None)
    half = SIZE // 2  # Box and Muller make pairs of values that are far apart
    for lag in (1, 2, half):
        assert abs(np.corrcoef(noise[:-lag], noise[lag:])[0, 1]) < 5 / (SIZE - lag) ** 0.5


def test_seeded_noise_repeats_and_differs_between_rounds():
    first = gaussian_noise(10, 1.0, (7, 4, 0))
    assert (first == gaussian_noise(10, 1.0, (7, 4, 0))).all()
    assert (first != gaussian_noise(10, 1.0, (7, 4, 1))).all()


def test_system_noise_never_repeats():
    assert (gaussian_noise(10, 1.0, None) != gaussian_noise(10, 1.0, None)).all()


@pytest.mark.parametrize("size", [0, 1, 3, (1 << 18) + 1])
def test_noise_of_every_size_is_complete(size):
    noise = gaussian_noise(size, 1.0, None)
    assert noise.shape == (size,)
    assert np.isfinite(noise).all()
