"""Means and majority votes of updates."""

from __future__ import annotations

import numpy as np
import pytest

from fedtern import Layout
from fedtern.core.codecs import LowRankCodec
from fedtern.core.compressors import Sign
from fedtern.core.methods.aggregation import MajorityVote, Mean
from fedtern.core.updates import Dense, LowRank, Sparse


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


def test_huge_factors_that_cancel_do_not_affect_other_uploads():
    """Both outer products are huge, but their sum is zero."""
    layout = Layout(("w",), ((8, 8),))
    honest = Dense(np.ones(64, np.float32))
    left = np.ones((2, 8), np.float32)
    right = np.full((2, 8), 2.0**80, np.float32)
    right[1] *= -1
    malicious = LowRank(((8, 8),), (2,), np.concatenate([left.reshape(-1), right.reshape(-1)]))
    assert LowRankCodec().decode(LowRankCodec().encode(malicious, layout), layout).size == 64
    assert Mean().combine([honest, malicious], [1, 1]).tolist() == [0.5] * 64
