"""One client's training between its uploads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from fedtern import Client, DecodeError, Snapshot, stc
from fedtern.core.carried import NO_VALUES, Values
from fedtern.core.methods import METHODS
from fedtern.federation.client_session import ClientSession, Job, Outcome, Scores

SIZE = 50


class MomentumTrainer:
    """Training that depends on weights, position, round and velocity alone."""

    together = 1

    def train(
        self, weights: np.ndarray, jobs: Iterable[Job], carried: Values = NO_VALUES
    ) -> Iterator[Outcome]:
        for job in jobs:
            rng = np.random.default_rng([job.client, job.position, job.round])
            velocity = rng.standard_normal(weights.size).astype(np.float32)
            if job.velocity is not None:
                velocity += np.float32(0.9) * job.velocity
            yield Outcome(-velocity, velocity, None)

    def evaluate(self, weights: np.ndarray, carried: Values = NO_VALUES) -> Scores:
        return Scores(0.0, {})

    def close(self) -> None:
        pass


def new_client(method) -> Client:
    return Client(3, method, weights=np.zeros(SIZE))


def test_nothing_changes_before_a_commit():
    method = stc(1 / 10, 1 / 10)
    client, session = new_client(method), ClientSession(3, method, position=8)
    first = session.train(client, MomentumTrainer())
    again = session.train(client, MomentumTrainer())
    assert np.array_equal(first.delta, again.delta)
    assert (session.position, session.velocity, session.committed_round) == (8, None, -1)


def test_a_commit_advances_position_and_momentum():
    method = METHODS["fedavg"](local_steps=5)
    client, session = new_client(method), ClientSession(3, method)
    outcome = session.train(client, MomentumTrainer())
    session.commit(outcome, client.send_delta(outcome.delta))
    assert session.position == 5
    assert session.committed_round == 0
    job = session.job(7)
    assert (job.client, job.position, job.round) == (3, 5, 7)
    assert job.velocity is outcome.velocity


def test_momentum_is_masked_for_entries_in_the_upload_where_the_method_says_so():
    masking = METHODS["sbc"](p=0.1, scope="model")
    client, session = new_client(masking), ClientSession(3, masking)
    outcome = session.train(client, MomentumTrainer())
    sent = client.send_delta(outcome.delta.copy())
    session.commit(outcome, sent)
    masked = np.flatnonzero(session.velocity == 0)
    assert masked.size
    assert np.array_equal(masked, sent.update.indices)


def test_a_session_is_restored_from_its_snapshot():
    method = stc(1 / 10, 1 / 10)
    client, session = new_client(method), ClientSession(3, method)
    outcome = session.train(client, MomentumTrainer())
    session.commit(outcome, client.send_delta(outcome.delta))
    data = session.snapshot().to_bytes()
    restored = ClientSession(3, method)
    restored.restore(Snapshot.from_bytes(data))
    assert (restored.position, restored.committed_round) == (1, 0)
    assert np.array_equal(restored.velocity, session.velocity)


@pytest.mark.parametrize("meta", [{}, {"client": 4, "position": 0, "round": 0}, {"client": 3}])
def test_a_snapshot_of_something_else_is_refused(meta):
    session = ClientSession(3, stc(), position=2)
    with pytest.raises(DecodeError, match="not a snapshot of this client's training"):
        session.restore(Snapshot({}, meta))
    assert session.position == 2


def test_a_kill_between_upload_and_commit_leads_to_the_same_state():
    method = METHODS["sbc"](p=0.1, scope="model")
    states = []
    for killed in (False, True):
        client, session = new_client(method), ClientSession(3, method)
        outcome = session.train(client, MomentumTrainer())
        sent = client.send_delta(outcome.delta.copy())
        if killed:
            session = ClientSession(3, method)
            assert session.recover(client, MomentumTrainer())
        else:
            session.commit(outcome, sent)
        assert not session.recover(client, MomentumTrainer())
        states.append(session.snapshot().to_bytes())
    assert states[0] == states[1]
