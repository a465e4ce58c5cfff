"""The paper's analytic message sizes."""

from __future__ import annotations

import numpy as np
import pytest

from fedtern import Layout, signsgd, stc, topk
from fedtern.core.analytic import analytic_bits


def test_sums_of_s_sign_vectors_take_log2_of_2s_plus_1_bits_per_parameter():
    layout = Layout.flat(1000)
    method = signsgd()
    assert analytic_bits(method.up, layout) == 1000
    assert analytic_bits(method.down, layout, rounds=10) == pytest.approx(1000 * np.log2(21))


def test_sparse_updates_take_bits_per_position_and_value():
    layout = Layout.flat(100_000)
    assert analytic_bits(stc(0.01).up, layout) == pytest.approx(1000 * 9.108, rel=1e-3)
    assert analytic_bits(topk(0.01).up, layout) == pytest.approx(1000 * 40.108, rel=1e-3)


def test_exact_broadcasts_take_one_model_for_any_number_of_rounds():
    layout = Layout.flat(100_000)
    assert analytic_bits(topk(0.01).down, layout, rounds=3) == 3_200_000
