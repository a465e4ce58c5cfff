"""Secure aggregation in the local simulation."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from fedtern import Environment, LocalProtocolError, simulate, stc
from fedtern.data.hyperparameters import Sgd
from fedtern.privacy.secure import secure_topk
from fedtern.training.tasks import get_task
from fedtern.transports.local.federation import Federation
from fedtern.transports.local.secure import SecureFederation
from fedtern.transports.local.simulation import federate


def make_federation(method, make=None, **environment) -> Federation:
    task = get_task("logistic-digits")
    place = Environment(**{"clients": 20, "participation": 0.5, **environment})
    sgd = Sgd(task.learning_rate, 0.0)
    return federate(task, task.load(None), method, place, sgd, seed=1, workers=0, make=make)


METHOD = secure_topk(1 / 20, 1 / 20)


def test_a_secure_federation_trains():
    first, last = simulate(
        "logistic-digits", method=METHOD, iterations=40, evaluate_every=20, workers=0
    )
    assert last.loss < first.loss
    assert last.up_bytes_mean > 40 * 500  # keys and shares are counted


@pytest.mark.parametrize("positions", ["leader", "random"])
def test_the_sum_of_a_round_is_that_of_the_clients_updates(positions):
    federation = make_federation(secure_topk(1 / 20, 1 / 20, positions))
    for _ in range(3):
        federation.exchange(federation.environment.cohort(1, federation.server.round))
        updates = [each.sent.update for each in federation._participants.values()]
        expected = np.mean([update.to_dense() for update in updates], 0)
        found = federation._sum.mean(expected.size)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
        federation.witness.receive(federation.finish_round().data)
        assert (federation.witness.weights == federation.server.weights).all()


def test_clients_that_leave_keep_their_updates():
    make = partial(SecureFederation, dropout=0.2)
    federation = make_federation(METHOD, make)
    for _ in range(8):
        federation.step()
    assert federation.totals.left > 5
    assert federation.totals.abandoned < 8


def test_an_abandoned_round_changes_no_weights_and_returns_all_updates():
    federation = make_federation(METHOD, partial(SecureFederation, dropout=0.95))
    before = federation.server.weights.copy()
    for _ in range(4):
        federation.step()
    assert federation.totals.abandoned == 4
    assert (federation.server.weights == before).all()
    assert federation.server.round == 4


def test_a_snapshot_continues_with_the_same_quantum_and_weights():
    one, other = make_federation(METHOD), make_federation(METHOD)
    for _ in range(3):
        one.step()
    other.restore(one.snapshot())
    assert other.quantum == one.quantum
    for federation in (one, other):
        federation.step()
    assert (one.server.weights == other.server.weights).all()


def test_a_federation_without_secure_aggregation_refuses_the_method():
    with pytest.raises(LocalProtocolError, match="cannot make plain uploads"):
        make_federation(METHOD, Federation).step()


def test_a_secure_federation_refuses_other_methods():
    with pytest.raises(ValueError, match="no secure aggregation"):
        make_federation(stc(), SecureFederation)


@pytest.mark.parametrize("positions", ["leader", "random"])
def test_sums_without_messages_give_the_same_weights(positions):
    method = secure_topk(1 / 20, 1 / 20, positions)
    real = make_federation(method)
    direct = make_federation(method, partial(SecureFederation, messages=False))
    for _ in range(6):
        real.step()
        direct.step()
        assert (real.server.weights == direct.server.weights).all()
    assert real.quantum == direct.quantum
    assert real.meter.up.total > 6 * 10 * 500
