"""``benchmarks/residuals.py``: residuals with fewer bits."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedtern import Layout

LAYOUT = Layout(("large", "small", "zero"), ((50,), (30,), (20,)))


@pytest.fixture
def residuals(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import residuals

    yield residuals
    del sys.modules["residuals"]


@pytest.fixture
def x():
    rng = np.random.default_rng(0)
    parts = [100 * rng.standard_normal(50), rng.standard_normal(30), np.zeros(20)]
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize(("kind", "steps"), [("int8", 0.5), ("int8_stochastic", 1)])
def test_int8_is_within_one_step_of_each_tensors_grid(residuals, x, kind, steps):
    rounded = getattr(residuals, kind)(x, LAYOUT, np.random.default_rng(1))
    for exact, found in zip(
        LAYOUT.unflatten(x).values(), LAYOUT.unflatten(rounded).values(), strict=True
    ):
        step = np.abs(exact).max() / 127
        assert np.abs(found - exact).max() <= steps * step * 1.001
        assert np.unique(found).size <= 255
    assert not np.array_equal(rounded, x)


def test_rounding_at_random_is_unbiased(residuals, x):
    rng = np.random.default_rng(2)
    mean = np.mean([residuals.int8_stochastic(x, LAYOUT, rng) for _ in range(400)], axis=0)
    step = np.abs(x[:50]).max() / 127
    assert np.abs(mean - x).max() < 0.15 * step


def test_residual_of_float32_trains_like_stc_and_others_differ(residuals):
    from fedtern import simulate, stc

    plain = simulate(
        "logistic-digits",
        method=stc(p_up=residuals.P, p_down=residuals.P),
        environment=residuals.ENVIRONMENT,
        iterations=20,
        evaluate_every=20,
        workers=1,
    )
    expected = list(plain)[-1].accuracy
    assert residuals.accuracy("logistic-digits", "float32", 0, 20) == expected
    assert residuals.accuracy("logistic-digits", "no residual", 0, 20) != expected
