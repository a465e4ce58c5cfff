"""The states of simulated clients, in memory and on disk."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from fedtern.transports.local.client_states import ClientStates


def test_states_beyond_the_limit_are_on_disk_and_can_be_replaced():
    states = ClientStates(limit=100)
    for client in range(5):
        states.put(client, {"residual": np.full(10, client, np.float32)})
    assert (states.nbytes, states.num_spilled) == (80, 3)
    assert states.get(0)["residual"].tolist() == [0] * 10
    states.put(0, {})
    assert states.get(0) == {}
    assert [client for client, _ in states.items()] == [1, 2, 3, 4]
