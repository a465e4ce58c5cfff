"""SGD on flat vectors, compared with torch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedtern.core.errors import NonFiniteError
from fedtern.data.hyperparameters import Sgd
from fedtern.training import get_task
from fedtern.training.flat import FlatModel
from fedtern.training.objective import Objective
from training.any_tasks import Tied, adapters, batch_norm
from training.factories import convolution, local_training

TASK = get_task("mlp-digits")


def test_sgd_equals_that_of_torch():
    pytest.importorskip("sklearn")
    train, _ = TASK.examples(TASK.load())
    flat = FlatModel(TASK.build(0))
    reference = TASK.build(0)
    optimizer = torch.optim.SGD(reference.parameters(), 0.1, 0.9, weight_decay=1e-3)
    batches = [train.batch(np.arange(20 * i, 20 * i + 20)) for i in range(12)]
    start = flat.weights
    first = flat.train(batches[:5], Sgd(0.1, 0.9, 1e-3))
    assert np.array_equal(flat.weights, start)
    flat.load(start + first.delta)
    second = flat.train(batches[5:], Sgd(0.1, 0.9, 1e-3), first.velocity)
    for inputs, labels in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(reference(inputs), labels).backward()
        optimizer.step()
    expected = np.concatenate([p.detach().numpy().reshape(-1) for p in reference.parameters()])
    assert np.allclose(flat.weights + second.delta, expected, rtol=1e-5, atol=1e-6)


def test_restrict_limits_the_entries_that_training_changes():
    def keep_ten(direction: np.ndarray) -> None:
        direction[10:] = 0

    flat = FlatModel(TASK.build(0))
    batches = [(torch.randn(8, 64), torch.arange(8)) for _ in range(3)]
    changed = flat.train(batches, Sgd(0.1, 0.9, 1e-3), restrict=keep_ten).delta != 0
    assert changed[:10].any()
    assert not changed[10:].any()


def test_example_moments_are_sums_of_squares_and_do_not_change_the_step():
    torch.manual_seed(0)
    inputs = torch.randn(6, 64)
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    model = FlatModel(TASK.build(0))
    without = model.train([(inputs, labels)], Sgd(0.1))
    assert without.moments is None
    with_moments = model.train([(inputs, labels)], Sgd(0.1), example_moments=True)
    assert np.allclose(without.delta, with_moments.delta, atol=1e-6)
    parts = []
    for i in range(6):
        single = model.train([(inputs[i : i + 1], labels[i : i + 1])], Sgd(0.1))
        parts.append(single.delta / 6)
    assert np.allclose(with_moments.moments, np.square(parts).sum(axis=0), atol=1e-9)


def test_an_interrupted_training_leaves_the_model_unchanged():
    local = local_training(convolution, 3)
    weights = local.model.weights

    def interrupted():
        yield from (local.train_examples.batch(np.arange(5)) for _ in range(2))
        raise KeyboardInterrupt

    before = local.evaluate(weights)
    with pytest.raises(KeyboardInterrupt):
        local.model.train(interrupted(), local.sgd)
    assert local.evaluate(weights) == before


def test_sparse_gradients_and_unused_parameters_are_supported():
    class Embedding(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4, sparse=True)
            self.unused = nn.Linear(2, 2)

        def forward(self, x):
            return self.table(x).mean(1)

    model = FlatModel(Embedding())
    changed = model.train([(torch.tensor([[1, 2]]), torch.tensor([3]))], Sgd(0.1)).delta != 0
    assert np.flatnonzero(changed).tolist() == list(range(4, 12))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.LazyLinear(2), "parameter weight has no shape yet; call the model once on a batch"),
        (Complex(), "tensor 'weight' is complex64; supported are float16"),
        (nn.Flatten(), "no trainable parameters"),
    ],
)
def test_an_unsupported_model_is_an_error_with_the_reason(module, message):
    with pytest.raises(ValueError, match=message):
        FlatModel(module)


def test_batch_statistics_are_carried_and_start_anew_from_the_given_ones():
    model = FlatModel(batch_norm())
    start = model.carried
    batches = [(torch.randn(8, 1, 6, 6), torch.arange(8) % 2) for _ in range(3)]
    outcomes = []
    for _ in range(2):
        model.load_buffers(start)
        outcomes.append(model.train(batches, Sgd(0.1)))
    first, second = (outcome.carried for outcome in outcomes)
    assert first["1.num_batches_tracked"] == 3
    for name, values in first.items():
        assert np.array_equal(values, second[name])
        assert not np.array_equal(values, start[name])


def test_statistics_are_those_of_torch():
    model = FlatModel(batch_norm(), objective=Objective(None, ()))
    reference = copy.deepcopy(model.module)
    inputs = torch.randn(8, 1, 6, 6)
    outcome = model.train([(inputs, torch.arange(8) % 2)], Sgd(0.1))
    reference.train()
    reference(inputs)
    expected = reference.state_dict()["1.running_var"].numpy()
    assert np.allclose(outcome.carried["1.running_var"], expected)


def test_buffers_that_are_not_persistent_and_frozen_parameters_are_not_sent():
    model = FlatModel(Tied())
    assert model.layout.names == ("embedding.weight", "mix.weight", "mix.bias")
    assert model.layout.carried == ()
    frozen = FlatModel(adapters())
    assert frozen.layout.names == ("2.weight", "2.bias")
    assert set(frozen.state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_tied_parameter_is_trained_once_under_both_names():
    model = FlatModel(Tied())
    tokens = torch.randint(0, 20, (4, 8))
    outcome = model.train([(tokens, tokens)] * 2, Sgd(0.1))
    model.load(model.weights + outcome.delta)
    state = model.state_dict()
    assert torch.equal(state["embedding.weight"], state["head.weight"])
    fresh = Tied()
    fresh.load_state_dict(state)
    assert fresh.head.weight is fresh.embedding.weight


def test_patterns_choose_the_trained_parameters_by_any_of_their_names():
    assert FlatModel(batch_norm(), trainable=["4.*"]).layout.names == ("4.weight", "4.bias")
    assert FlatModel(Tied(), trainable=["head.*"]).layout.names == ("embedding.weight",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainable": ["9.*"]}, "pattern '9.*' of trainable matches no parameter; .* 0.weight"),
        ({"trainable": "4.*"}, r"trainable must be a list of patterns, such as \['4.\*'\]"),
        ({"carry": "mean"}, 'carry must be "average", "latest" or "local", got \'mean\''),
        ({"overflow": "wrap"}, 'overflow must be "refuse" or "saturate", got \'wrap\''),
    ],
)
def test_an_invalid_option_is_an_error_that_names_it(options, message):
    with pytest.raises(ValueError, match=message):
        FlatModel(batch_norm(), **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("optimizer", [None, lambda p: torch.optim.SGD(p, 0.1)])
def test_other_dtypes_train_on_a_float32_vector_and_come_back_in_their_own(dtype, optimizer):
    torch.manual_seed(0)
    module = batch_norm().to(dtype)
    model = FlatModel(module)
    assert model.weights.dtype == np.float32
    batches = [(torch.randn(8, 1, 6, 6), torch.arange(8) % 2) for _ in range(3)]
    if optimizer is None:
        outcome = model.train(batches, Sgd(0.1))
    else:
        outcome = model.train_with(model.make_optimizer(optimizer), batches)
    start = model.state_dict()
    for name, value in module.state_dict().items():
        assert name.startswith("1.running") or name.endswith("tracked") or value.equal(start[name])
    model.load(model.weights + outcome.delta)
    model.load_buffers(outcome.carried)
    state = model.state_dict()
    assert {value.dtype for value in state.values()} == {dtype, torch.int64}
    expected = model.layout.unflatten(model.weights)["4.weight"]
    assert torch.equal(state["4.weight"], torch.tensor(expected).to(dtype))
    module.load_state_dict(state)
    assert np.isfinite(model.arrays()["1.running_var"]).all()
    scores = model.evaluate_batch(*batches[0])
    assert np.isfinite(scores.loss)


def test_a_weight_too_large_for_float16_is_refused_or_saturated():
    def train(overflow: str) -> FlatModel:
        model = FlatModel(nn.Linear(1, 2).half(), overflow=overflow)
        model.load(np.array([7e4, -8e4, 0, 0], np.float32))
        model.train([(torch.zeros(2, 1), torch.tensor([0, 1]))], Sgd(0.1))
        return model

    with pytest.raises(NonFiniteError, match=r"value 80000 of tensor 'weight' is too .* float16"):
        train("refuse")
    assert train("saturate").state_dict()["weight"].tolist() == [[65504], [-65504]]


def test_float64_targets_are_compared_in_the_dtype_of_the_outputs():
    model = FlatModel(nn.Linear(1, 1), objective=Objective(nn.functional.mse_loss, ()))
    batch = (torch.ones(3, 1, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64))
    assert model.train([batch], Sgd(0.1)).delta.any()


def test_a_batch_of_one_example_that_a_model_cannot_train_on_is_an_error_with_the_remedy():
    model = FlatModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    batch = (torch.ones(1, 2), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"a batch of one example .* choose a batch_size"):
        model.train([batch], Sgd(0.1))
    with pytest.raises(ValueError, match=r"^Expected target size|^Expected input batch_size"):
        model.train([(torch.ones(3, 2), torch.tensor([0, 1]))], Sgd(0.1))


class Counting(nn.Module):
    """Count calls in a buffer that is not persistent; the outputs depend on the count."""

    def __init__(self, assign: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.assign = assign
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, inputs):
        if self.assign:
            self.calls = self.calls + 1
        else:
            self.calls += 1
        return self.linear(inputs) * self.calls


@pytest.mark.parametrize("assign", [False, True])
def test_training_and_evaluation_start_from_the_initial_computed_buffers(assign):
    model = FlatModel(Counting(assign))
    batch = (torch.ones(3, 2), torch.tensor([0, 1, 0]))
    scores = model.evaluate_batch(*batch)
    first = model.train([batch], Sgd(0.1)).delta.copy()
    adam = model.make_optimizer(lambda p: torch.optim.SGD(p, 0.1))
    with_optimizer = model.train_with(adam, [batch]).delta.copy()
    np.testing.assert_array_equal(model.train([batch], Sgd(0.1)).delta, first)
    np.testing.assert_allclose(with_optimizer, first, rtol=1e-6)
    assert model.evaluate_batch(*batch) == scores
    assert model.copy_module().calls == 0


class Noisy(nn.Module):
    """Add noise, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, inputs):
        outputs = self.linear(inputs)
        return outputs + torch.randn_like(outputs)


def test_an_evaluation_of_a_random_model_is_reproducible_and_keeps_the_global_generator():
    model = FlatModel(Noisy())
    batch = (torch.ones(3, 2), torch.tensor([0, 1, 0]))
    before = torch.random.get_rng_state()
    scores = model.evaluate_batch(*batch)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model.evaluate_batch(*batch) == scores
    assert model.evaluate_batch(*batch, number=1) != scores
