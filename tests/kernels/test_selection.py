from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks import random_vector, vectors
from fedtern.kernels import first_unsafe, top_k


def oracle(x: np.ndarray, k: int) -> np.ndarray:
    order = np.argsort(-np.abs(x.astype(np.float64)), kind="stable")[:k]
    return np.sort(order[x[order] != 0])


@given(vectors, st.integers(1, 400))
def test_selects_what_a_stable_sort_selects(x, k):
    assert np.array_equal(top_k(x, k), oracle(x, k))


@pytest.mark.parametrize("size", [8192, 8193, 50_000, 262_144 + 17])
@pytest.mark.parametrize("p", [1e-4, 1 / 400, 0.1, 0.7, 1.0])
def test_selects_exactly_on_vectors_large_enough_to_sample(size, p):
    x = random_vector(np.random.default_rng(size), size)
    k = max(int(size * p), 1)
    assert np.array_equal(top_k(x, k), oracle(x, k))


def test_a_sample_that_misleads_costs_time_and_nothing_else():
    # Every sampled position is huge, all others are small: the first threshold is far too high.
    x = np.full(100_000, 0.25, np.float32)
    x[:: 100_000 // 8192] = 1e6
    k = 20_000
    assert np.array_equal(top_k(x, k), oracle(x, k))


@pytest.mark.parametrize("size", [10, 64, 20_000])
def test_ties_go_to_the_lowest_index(size):
    x = np.ones(size, np.float32)
    x[1::2] = -1
    assert np.array_equal(top_k(x, 7), np.arange(7))


@pytest.mark.parametrize("size", [0, 1, 100, 20_000])
def test_zeros_are_never_selected(size):
    x = np.zeros(size, np.float32)
    x[:1] = -0.0
    assert top_k(x, 5).size == 0


def test_the_smallest_subnormal_is_not_zero():
    x = np.zeros(20_000, np.float32)
    x[777] = np.float32(1e-45)
    assert top_k(x, 3).tolist() == [777]


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, 1.3e30, -3e38])
@pytest.mark.parametrize("at", [0, 63, 64, 9_999])
def test_unsafe_values_are_found_and_selected(bad, at):
    x = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    assert first_unsafe(x) == -1
    x[at] = bad
    assert first_unsafe(x) == at
    assert at in top_k(x, 1)


@pytest.mark.slow
def test_kernels_stay_within_their_arrays(tmp_path):
    """The same tests once more, with every index checked."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    here = Path(__file__).parents[1]
    tests = [
        str(here / "codecs"),
        str(here / "kernels"),
        str(here / "protocol" / "test_protocol.py"),
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=here.parent
    )
    assert result.returncode == 0, result.stdout[-3000:]


def test_two_to_the_hundred_is_the_largest_safe_value():
    assert first_unsafe(np.float32([2.0**100, -(2.0**100)])) == -1
    assert (
        first_unsafe(np.float32([0, np.nextafter(np.float32(2.0**100), np.float32(np.inf))])) == 1
    )
