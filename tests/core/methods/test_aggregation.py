"""Means and majority votes of updates."""

from __future__ import annotations

import numpy as np
import pytest

from fedtern import Layout
from fedtern.core.compressors import Sign
from fedtern.core.methods.aggregation import MajorityVote, Mean
from fedtern.core.updates import Dense, Sparse


def test_means_are_plain_or_weighted_by_examples():
    updates = [Dense(np.float32([1, 0])), Sparse(2, np.array([1]), np.float32([4]))]
    assert Mean().combine(updates, [1, 3]).tolist() == [0.5, 2.0]
    assert Mean(weighted=True).combine(updates, [1, 3]).tolist() == [0.25, 3.0]


def test_the_majority_decides_the_sign_and_a_tie_gives_zero():
    rng = np.random.default_rng(0)
    layout = Layout.flat(3)
    votes = [
        Sign().compress(np.float32(v), layout, rng)
        for v in ([1, 1, 1], [1, -1, 9], [1, -1, -1], [-1, 1, -1])
    ]
    assert np.sign(MajorityVote().combine(votes, [1] * 4)).tolist() == [1, 0, 0]
    assert np.sign(MajorityVote().combine(votes[:3], [1] * 3)).tolist() == [1, -1, 1]


def test_updates_without_signs_cannot_vote():
    with pytest.raises(TypeError, match="only signs can vote"):
        MajorityVote().combine([Dense(np.zeros(3, np.float32))], [1])
