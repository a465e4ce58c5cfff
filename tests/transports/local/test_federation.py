"""A simulated federation: determinism, snapshots, traffic and momentum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from fedtern import METHODS as BY_NAME  # noqa: E402
from fedtern import Snapshot, fedavg, sgd, signsgd, stc, topk  # noqa: E402
from fedtern.data import Dataset  # noqa: E402
from fedtern.data.environment import Environment  # noqa: E402
from fedtern.data.hyperparameters import Sgd  # noqa: E402
from fedtern.runs import Evaluation  # noqa: E402
from fedtern.training import get_task  # noqa: E402
from fedtern.training.batches import Batches  # noqa: E402
from fedtern.training.flat import FlatModel  # noqa: E402
from fedtern.transports.local.federation import Federation, evaluations  # noqa: E402
from fedtern.transports.local.simulation import federate  # noqa: E402

TASK = get_task("mlp-digits")
TWELVE_CLIENTS = Environment(clients=12, participation=0.25, classes_per_client=2)
METHODS = {
    "sgd": sgd(),
    "fedavg": fedavg(5, weighted=True),
    "signsgd": signsgd(0.002),
    "topk": topk(0.01),
    "stc": stc(0.01, 0.01),
    "stc-delay": stc(0.01, 0.01, local_steps=4, scope="tensor"),
    "stc-powers": stc(0.01, 0.01, codec="adaptive", magnitudes="powers"),
    "stc-yogi": stc(0.01, 0.01, server_optimizer="yogi"),
    "sbc": BY_NAME["sbc"](local_steps=2),
    "dgc": BY_NAME["dgc"](0.01, warmup=1),
    "variance": BY_NAME["variance"](),
    "qsgd": BY_NAME["qsgd"](),
    "powersgd": BY_NAME["powersgd"](),
    "structured": BY_NAME["structured"](local_steps=3),
    "structured-rank": BY_NAME["structured"](rank=2, local_steps=2),
    "sketched": BY_NAME["sketched"](local_steps=1),
    "eden": BY_NAME["eden"](),
    "sparseloco": BY_NAME["sparseloco"](local_steps=2, p_down=0.01),
    "demo": BY_NAME["demo"](),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    pytest.importorskip("sklearn")
    return TASK.load()


def make(digits, method, momentum=0.9, environment=TWELVE_CLIENTS, **options) -> Federation:
    return federate(TASK, digits, method, environment, Sgd(0.05, momentum, 1e-4), seed=3, **options)


def without_seconds(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, seconds={})


def play(federation: Federation, rounds: int) -> Evaluation:
    for _ in range(rounds):
        federation.step()
    return without_seconds(federation.evaluate())


@every_method
def test_the_same_seed_gives_the_same_bytes(digits, method):
    first = make(digits, method)
    second = make(digits, method)
    assert play(first, 8) == play(second, 8)
    assert first.server.weights.tobytes() == second.server.weights.tobytes()


@every_method
def test_clients_have_the_weights_of_the_server_after_every_round(digits, method):
    federation = make(digits, method)
    for _ in range(6):
        federation.step()
        assert federation.witness.weights.tobytes() == federation.server.weights.tobytes()


@every_method
def test_a_restored_federation_continues_to_the_same_bytes(digits, method):
    whole = make(digits, method)
    first = make(digits, method)
    play(whole, 7)
    play(first, 3)
    second = make(digits, method)
    second.restore(Snapshot.from_bytes(first.snapshot().to_bytes()))
    assert play(second, 4) == without_seconds(whole.evaluate())
    assert second.server.weights.tobytes() == whole.server.weights.tobytes()


@every_method
def test_client_states_on_disk_give_the_same_bytes(digits, method):
    unlimited = make(digits, method)
    limited = make(digits, method, memory_bytes=30_000)
    assert play(unlimited, 10) == play(limited, 10)
    assert limited._states.nbytes <= 30_000
    assert limited._states.num_spilled or not unlimited._states.nbytes > 30_000
    restored = make(digits, method)
    restored.restore(Snapshot.from_bytes(limited.snapshot().to_bytes()))
    assert play(restored, 2) == play(unlimited, 2)


def test_a_snapshot_does_not_change_with_later_rounds(digits):
    federation = make(digits, METHODS["stc"])
    play(federation, 3)
    snapshot = federation.snapshot()
    before = snapshot.to_bytes()
    play(federation, 3)
    assert snapshot.to_bytes() == before


def test_states_of_many_clients_on_disk_need_few_open_files(digits):
    import resource

    all_clients = Environment(clients=300, participation=1.0)
    federation = make(digits, METHODS["stc"], environment=all_clients, memory_bytes=50_000)
    play(federation, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        saved = federation.snapshot().to_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    again = make(digits, METHODS["stc"], environment=all_clients, memory_bytes=50_000)
    again.restore(Snapshot.from_bytes(saved))
    assert play(again, 1) == play(federation, 1)


def test_dropout_depends_only_on_the_seed(digits):
    task = replace(TASK, model=lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10)))
    results = []
    for noise in (1, 2):
        torch.manual_seed(noise)  # the state of torch's generator must not matter
        federation = federate(task, digits, stc(0.1, 0.1), TWELVE_CLIENTS, Sgd(0.1), seed=3)
        results.append(play(federation, 4))
    assert results[0] == results[1]


def test_only_clients_that_participated_have_a_state(digits):
    federation = make(digits, stc(0.01, 0.01), momentum=0.0)
    assert not list(federation._states.items())
    play(federation, 2)
    cohorts = {i for t in (0, 1) for i in TWELVE_CLIENTS.cohort(3, t)}
    assert [i for i, _ in federation._states.items()] == sorted(cohorts)


def test_full_participation_without_compression_equals_large_batch_sgd(digits):
    # Up to rounding: the two add gradients in different orders.
    all_clients = Environment(clients=4, participation=1.0, batch_size=10, split="iid")
    federation = make(digits, sgd(), momentum=0.0, environment=all_clients)
    plain = FlatModel(TASK.build(3))
    for t in range(5):
        federation.step()
        rows = np.concatenate(
            [
                next(Batches(c, 10, 3, i).take(t, 1))[0]
                for i, c in enumerate(federation.split.clients)
            ]
        )
        batch = TASK.examples(digits)[0].batch(rows)
        plain.load(plain.weights + plain.train([batch], Sgd(0.05, 0.0, 1e-4)).delta)
    assert np.allclose(plain.weights, federation.server.weights, atol=1e-5)


def test_traffic_is_the_size_of_the_messages(digits):
    environment = Environment(clients=6, participation=0.5, split="iid")
    federation = make(digits, sgd(), environment=environment)
    size = 4 * federation.server.terms.layout.size
    evaluation = play(federation, 1)
    assert evaluation.down_bytes == 0  # all clients start with the same model
    assert evaluation.up_bytes == 3 * evaluation.up_bytes_mean
    assert size < evaluation.up_bytes_mean < size + 40
    evaluation = play(federation, 3)
    assert evaluation.up_bytes_paper == 4 * size
    assert evaluation.dense_bytes == 4 * size
    # Each download is one model, for any number of missed rounds.
    assert evaluation.down_bytes % (3 * size) < 3 * 8 * 60
    assert evaluation.down_bytes_paper <= 3 * size


def test_evaluations_happen_only_at_the_end_of_rounds(digits):
    federation = make(digits, fedavg(7))
    assert [r.iteration for r in evaluations(federation, 30, 10)] == [14, 21, 35]


@pytest.mark.parametrize("split", ["classes", "iid", "dirichlet"])
@pytest.mark.parametrize("public", [0.0, 0.1])
def test_a_federation_trains_with_every_split(digits, split, public):
    environment = replace(TWELVE_CLIENTS, split=split, public=public)
    assert play(make(digits, stc(0.05, 0.05), environment=environment), 2).round == 2


def test_momentum_is_kept_masked_or_part_of_the_feedback_state(digits):
    all_clients = Environment(clients=4, participation=1.0, classes_per_client=2)
    velocity = "training.velocity"
    kept, masked, in_feedback = (
        make(digits, method, environment=all_clients)
        for method in (stc(0.5, 0.5), BY_NAME["sbc"](0.5, local_steps=1), BY_NAME["dgc"](0.5))
    )
    for federation in (kept, masked, in_feedback):
        federation.step()
    assert np.count_nonzero(kept._states.get(0)[velocity] == 0) < 2000
    assert np.count_nonzero(masked._states.get(0)[velocity] == 0) > 400
    assert velocity not in in_feedback._states.get(0)
    assert in_feedback._states.get(0)["feedback.velocity"].any()


def test_what_only_the_first_round_costs_is_charged_to_the_start(digits, monkeypatch):
    federation = make(digits, stc(0.01, 0.01), workers=0)
    seconds = federation.meter.seconds
    rounds = iter([5.0, 1.0, 1.0])

    def exchange(cohort):
        seconds["train"] += next(rounds)
        return federation_exchange(cohort)

    federation_exchange = federation.exchange
    monkeypatch.setattr(federation, "exchange", exchange)
    for _ in range(3):
        federation.step()
    assert seconds["train"] < 5
    assert 3 < seconds["start"] < 6


def test_a_status_has_the_traffic_and_the_clients_that_are_behind(digits):
    federation = make(digits, stc(0.01, 0.01), workers=0)
    for _ in range(20):
        federation.step()
    status = federation.status()
    evaluation = federation.evaluate()
    for name in ("round", "iteration", "up_bytes", "down_bytes", "up_bytes_mean"):
        assert getattr(status, name) == getattr(evaluation, name)
    lags = [lag.rounds for lag in status.clients.behind]
    assert lags == sorted(lags, reverse=True)
    assert all(1 < lag < 20 for lag in lags)
    last = set(TWELVE_CLIENTS.cohort(3, 19))
    assert not last & {lag.client for lag in status.clients.behind}
    assert (status.clients.total, status.clients.cohort) == (12, 3)
