"""The pool of vectors in shared memory."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from fedtern import FedternError
from fedtern.transports.local.shared_vectors import SharedVectors


def test_a_vector_returns_to_the_pool_when_no_reference_to_it_is_left():
    pool = SharedVectors(10, 2)
    first = pool.take()
    second = pool.take()
    first[...] = 1
    second[...] = 2
    assert pool[pool.index(second)].tolist() == [2] * 10
    with pytest.raises(FedternError, match=r"All 2 shared vectors are in use; .* --workers 0"):
        pool.take()
    assert pool.available == 0
    view = first[3:]
    del first
    with pytest.raises(FedternError, match="are in use"):
        pool.take()
    assert view.tolist() == [1] * 7
    del view
    assert pool.index(pool.take()) == 0


def test_adopt_copies_only_vectors_that_are_not_from_the_pool():
    pool = SharedVectors(10, 2)
    shared = pool.take()
    assert pool.adopt(shared) is shared
    other = np.full(10, 5, np.float32)
    assert pool.adopt(other) is not other
    assert pool.adopt(other).tolist() == [5] * 10
