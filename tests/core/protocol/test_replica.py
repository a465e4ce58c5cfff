"""Replicas stay equal bit by bit, with and without counted signs."""

from __future__ import annotations

import numpy as np

from fedtern import Layout
from fedtern.core.compressors import Sign, TopK
from fedtern.core.protocol.replica import Replica


def test_a_replica_restored_from_arrays_stays_equal_to_the_original():
    rng = np.random.default_rng(0)
    layout = Layout.flat(200)
    first = Replica(rng.standard_normal(200).astype(np.float32))

    def apply(step: float, *replicas: Replica) -> None:
        update = Sign(step).compress(rng.standard_normal(200).astype(np.float32), layout, rng)
        for replica in replicas:
            replica.apply(update)

    for step in (0.01, 0.01, 0.003, 0.003, 0.003):
        apply(step, first)
    second = Replica.from_arrays(first.to_arrays())
    for step in (0.003, 0.01, 0.01):
        apply(step, first, second)
        assert first.weights.tobytes() == second.weights.tobytes()


def test_sign_counts_restart_after_any_other_update():
    rng = np.random.default_rng(0)
    layout = Layout.flat(50)
    x = rng.standard_normal(50).astype(np.float32)
    signs = Sign(0.1).compress(x, layout, rng)
    sparse = TopK(0.5).compress(x, layout, rng)
    replica = Replica(x.copy())
    expected = x.copy()
    for update in (signs, sparse, signs):
        replica.apply(update)
        update.add_to(expected)
    assert np.allclose(replica.weights, expected, atol=1e-6)
