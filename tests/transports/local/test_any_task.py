"""Federations of models with buffers, other dtypes, losses and optimisers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fedtern import METHODS, Environment, NonFiniteError, Snapshot, stc  # noqa: E402
from fedtern.data.hyperparameters import Sgd  # noqa: E402
from fedtern.transports.local.federation import Federation  # noqa: E402
from fedtern.transports.local.simulation import federate  # noqa: E402
from training.any_tasks import IMAGES, TASKS, Tied, adam, batch_norm  # noqa: E402

EIGHT = Environment(clients=8, participation=0.5, batch_size=6, split="iid")
every_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def make(task, method=None, **options) -> Federation:
    return federate(
        task,
        task.load(),
        method or stc(0.1, 0.1, local_steps=2),
        EIGHT,
        Sgd(task.learning_rate, 0.9, 1e-3),
        seed=1,
        **{"workers": 0, **options},
    )


def advance(federation: Federation, rounds: int) -> Federation:
    for _ in range(rounds):
        federation.step()
    return federation


def state(federation: Federation) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in federation.snapshot().arrays.items()}


@every_task
def test_workers_give_the_same_bytes_and_scores_as_one_process(task):
    single = advance(make(task), 3)
    parallel = advance(make(task, workers=2), 3)
    try:
        assert state(single) == state(parallel)
        assert single.evaluate().metrics == parallel.evaluate().metrics
        assert single.evaluate().loss == parallel.evaluate().loss
        for name, tensor in single.trained_model().state_dict().items():
            assert torch.equal(tensor, parallel.trained_model().state_dict()[name])
    finally:
        parallel.close()


@every_task
def test_a_restored_federation_continues_to_the_same_bytes(task):
    whole = advance(make(task), 5)
    first = advance(make(task), 2)
    second = make(task)
    second.restore(Snapshot.from_bytes(first.snapshot().to_bytes()))
    assert state(advance(second, 3)) == state(whole)


@pytest.mark.parametrize("name", ["any-adam-local", "any-adam", "any-local"])
def test_client_states_on_disk_give_the_same_bytes(name):
    limited = advance(make(TASKS[name], memory_bytes=4000), 6)
    assert limited.clients_on_disk
    unlimited = advance(make(TASKS[name]), 6)
    assert state(limited) == state(unlimited)
    assert limited.evaluate().metrics == unlimited.evaluate().metrics


@every_task
def test_clients_have_the_tensors_of_the_server_after_every_round(task):
    federation = make(task)
    for _ in range(3):
        federation.step()
        assert federation.witness.weights.tobytes() == federation.server.weights.tobytes()
        for name, values in federation.server.carried.items():
            assert federation.witness.carried[name].tobytes() == values.tobytes()


def test_carried_statistics_are_averages_over_the_cohort():
    federation = make(TASKS["any-average"])
    initial = federation.server.carried["1.running_mean"].copy()
    federation.step()
    carried = federation.server.carried
    assert carried["1.num_batches_tracked"] == 2  # local steps
    assert not np.array_equal(carried["1.running_mean"], initial)


def test_local_statistics_are_not_sent_and_differ_between_clients():
    federation = advance(make(TASKS["any-local"]), 4)
    assert federation.server.terms.layout.carried == ()
    states = [vectors["training.state"] for _, vectors in federation._states.items()]
    assert len({each.tobytes() for each in states}) == len(states) > 2
    shared = advance(make(TASKS["any-average"]), 4)
    assert federation.evaluate().up_bytes < shared.evaluate().up_bytes


def test_an_evaluation_before_training_uses_the_initial_local_statistics():
    scores = make(TASKS["any-local"]).evaluate()
    assert scores.loss == make(TASKS["any-average"]).evaluate().loss


def test_dense_bytes_include_carried_tensors():
    federation = advance(make(TASKS["any-average"]), 1)
    size = federation.server.terms.layout.size
    assert federation.evaluate().dense_bytes == 2 * (4 * size + 4 * 8 + 8)


def test_frozen_parameters_never_change():
    federation = advance(make(TASKS["any-regression"]), 3)
    before = TASKS["any-regression"].build(1).state_dict()
    after = federation.trained_model().state_dict()
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["2.weight"], after["2.weight"])


def test_the_learning_rate_follows_the_schedule():
    constant = TASKS["any-average"]
    stopped = replace(constant, schedule=lambda i: float(i < 4))
    federation = advance(make(stopped, METHODS["sgd"]()), 4)
    weights = federation.server.weights.copy()
    federation.step()
    assert np.array_equal(federation.server.weights, weights)
    other = advance(make(constant, METHODS["sgd"]()), 4)
    assert np.array_equal(other.server.weights, weights)


def test_the_schedule_applies_to_clients_that_train_together():
    def mlp():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))

    task = replace(TASKS["any-average"], model=mlp)
    halved = advance(make(replace(task, schedule=lambda _: 0.5), METHODS["sgd"]()), 1)
    whole = advance(make(task, METHODS["sgd"]()), 1)
    start = make(task).server.weights
    assert whole.trainer.together > 1
    change = whole.server.weights - start
    assert np.allclose(halved.server.weights - start, change / 2, atol=1e-6)


@pytest.mark.parametrize("method", ["variance", "structured"])
def test_a_method_that_changes_sgd_is_refused_with_another_optimiser(method):
    with pytest.raises(ValueError, match=f"method '{method}' changes the steps of SGD"):
        make(TASKS["any-adam"], METHODS[method]())


class Growing(torch.nn.Module):
    """A model with a buffer that changes its shape."""

    def __init__(self, dtype=None):
        super().__init__()
        self.linear = torch.nn.Linear(36, 2)
        self.dtype = dtype
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen = self.seen.to(self.dtype) if self.dtype else torch.zeros(2)
        return self.linear(x.flatten(1))


@pytest.mark.parametrize(
    ("dtype", "found"), [(None, r"shape \(2,\)"), (torch.float64, "dtype float64")]
)
def test_a_buffer_that_changes_shape_or_dtype_is_named_with_both_values(dtype, found):
    task = replace(TASKS["any-average"], model=lambda: Growing(dtype))
    expected = rf"carried tensor 'seen' has .*{found}.*, expected \(1,\) and float32"
    with pytest.raises(ValueError, match=expected):
        make(task).step()
    local = replace(task, carry="local")
    with pytest.raises(ValueError, match=r"tensor 'seen' was float32\[1\] and now is"):
        make(local).step()


class Exploding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(36, 2)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        self.mean.add_(float("inf"))
        return self.linear(x.flatten(1))


def test_a_statistic_that_is_not_finite_is_named():
    with pytest.raises(NonFiniteError, match="value inf in carried tensor 'mean' cannot be sent"):
        make(replace(TASKS["any-average"], model=Exploding)).step()


def test_any_model_learns():
    task = replace(TASKS["any-adam"], schedule=None)
    federation = advance(make(task, stc(0.2, 0.2, local_steps=5)), 30)
    assert federation.evaluate().accuracy > 0.8
    assert IMAGES.num_classes == 2
    assert batch_norm().training
    assert adam(Tied().parameters()).defaults["lr"] == 0.01
