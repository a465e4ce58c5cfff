"""SGD on flat vectors, compared with torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedtern.data.hyperparameters import Sgd
from fedtern.training import get_task
from fedtern.training.flat import FlatModel
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
