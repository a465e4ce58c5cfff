"""The built-in models: sizes, initialisation and training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedtern.training import TASKS, get_task

SHAPES = {
    "digits": (1, 8, 8),
    "mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "speech-commands": (1, 32, 32),
    "python-topics": (64,),
    "diabetes": (10,),
}


def random_batch(task, count=8):
    """Return inputs and targets like those of the task's dataset."""
    rng = np.random.default_rng(0)
    shape = (count, *SHAPES[task.dataset])
    if task.dataset == "python-topics":
        text = torch.as_tensor(rng.integers(0, 256, (count, 65)))
        return text[:, :-1], text[:, 1:]
    inputs = torch.as_tensor(rng.normal(size=shape), dtype=torch.float32)
    if task.dataset == "diabetes":
        return inputs, inputs[:, :1]
    if task.transform is not None:
        inputs = task.transform(inputs)
    return inputs, torch.arange(count)


@pytest.mark.parametrize(
    ("task", "count"),
    [
        ("vgg11s-cifar10", 865_482),
        ("cnn-kws", 876_938),
        ("lstm-fashion", 216_330),
        ("logistic-mnist", 7_850),
        ("logistic-digits", 650),
        ("mlp-digits", 2_410),
        ("mlp-fashion", 199_210),
    ],
)
def test_models_have_the_parameter_counts_of_table_ii(task, count):
    assert sum(p.numel() for p in get_task(task).build(0).parameters()) == count


@pytest.mark.parametrize("name", TASKS)
def test_one_sgd_step_lowers_the_loss_of_its_batch(name):
    task = get_task(name)
    inputs, targets = random_batch(task)
    model = task.build(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = task.objective.mean_loss(model(inputs), targets)
    before.backward()
    optimizer.step()
    assert task.objective.mean_loss(model(inputs), targets) < before


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.loss is None])
def test_models_of_classes_return_a_score_for_each_class(name):
    task = get_task(name)
    inputs, targets = random_batch(task)
    classes = 256 if task.dataset == "python-topics" else 10
    assert task.build(0)(inputs).shape == (8, classes, *targets.shape[1:])


def test_convolutions_of_vgg_are_initialised_like_in_the_authors_code():
    convolutions = [
        m for m in get_task("vgg11s-cifar10").build(0) if isinstance(m, torch.nn.Conv2d)
    ]
    assert [c.out_channels for c in convolutions] == [32, 64, 128, 128, 128, 128, 128, 128]
    for layer in convolutions[1:]:  # the first has too few weights for statistics
        expected = math.sqrt(2 / (9 * layer.out_channels))
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.05)
        assert not layer.bias.any()


@pytest.mark.parametrize("name", TASKS)
def test_a_model_depends_only_on_the_seed_and_building_it_leaves_the_generator_unchanged(name):
    before = torch.get_rng_state()
    first, second, other = (get_task(name).build(seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not all(map(torch.equal, first.parameters(), other.parameters()))
