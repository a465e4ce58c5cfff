"""The paper's analytic message sizes."""

from __future__ import annotations

import numpy as np
import pytest

from fedtern import Layout, signsgd, stc, topk
from fedtern.core.analytic import bits


def test_analytic_sizes_follow_the_paper():
    method = signsgd()
    assert bits(method.up, Layout.flat(1000)) == 1000
    # Sums of s sign vectors cost log2(2 s + 1) bits per entry.
    assert bits(method.down, Layout.flat(1000), rounds=10) == pytest.approx(1000 * np.log2(21))
    assert bits(stc(0.01).up, Layout.flat(100_000)) == pytest.approx(1000 * 9.108, rel=1e-3)
    assert bits(topk(0.01).up, Layout.flat(100_000)) == pytest.approx(1000 * 40.108, rel=1e-3)
    assert bits(topk(0.01).down, Layout.flat(100_000), rounds=3) == 3_200_000
