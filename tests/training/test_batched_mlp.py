"""Batched training of perceptrons, compared with the training of single clients."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from fedtern.data import Split
from fedtern.federation.client_session import Job
from fedtern.training.augment import CropFlip
from fedtern.training.batched_mlp import BatchedMlpTraining
from training.factories import convolution, every_other, five_jobs, local_training, perceptron


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("example_moments", [False, True])
@pytest.mark.parametrize("restriction", [None, every_other])
def test_batched_training_equals_training_of_single_clients_up_to_rounding(
    steps, momentum, example_moments, restriction
):
    single = local_training(perceptron, steps, momentum, example_moments, restriction)
    batched = BatchedMlpTraining(single)
    weights = single.model.weights
    jobs = five_jobs(weights.size, velocity=momentum > 0)
    for a, b in zip(single.train(weights, jobs), batched.train(weights, jobs), strict=True):
        assert np.allclose(a.delta, b.delta, rtol=1e-4, atol=1e-5)
        for x, y in ((a.velocity, b.velocity), (a.moments, b.moments)):
            assert (x is None) == (y is None)
            assert x is None or np.allclose(x, y, rtol=1e-4, atol=1e-5)
    assert single.evaluate(weights) == batched.evaluate(weights)


UNSUPPORTED = {
    "a convolution": convolution,
    "a layer without bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4, bias=False)),
    "another activation": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 4)
    ),
    "two linear layers in a row": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 4)
    ),
    "an activation at the end": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU()),
    "images that are not flattened": lambda: nn.Sequential(nn.Linear(8, 4)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_other_models_are_not_supported(name):
    assert not BatchedMlpTraining.supports(local_training(UNSUPPORTED[name]))


def test_layers_that_share_weights_are_not_supported():
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        model[3].weight = model[1].weight
        return model

    assert not BatchedMlpTraining.supports(local_training(tied))


def test_augmented_examples_are_not_supported():
    assert BatchedMlpTraining.supports(local_training(perceptron))
    assert not BatchedMlpTraining.supports(local_training(perceptron, augment=CropFlip()))


def test_the_outcome_of_a_client_does_not_depend_on_the_rest_of_the_cohort():
    # A node of a real federation trains alone, and must get the same bits.
    single = local_training(perceptron, 3)
    # Epochs that end with batches of different lengths.
    single.split = Split(tuple(np.arange(n) for n in (20, 9, 15, 5, 11, 7)))
    batched = BatchedMlpTraining(single)
    weights = single.model.weights
    for position in (0, 1, 2):
        cohort = [Job(client, position) for client in range(6)]
        for job, together in zip(cohort, batched.train(weights, cohort), strict=True):
            (alone,) = batched.train(weights, [job])
            assert np.array_equal(alone.delta, together.delta)


def test_moments_include_the_reach_of_momentum():
    without, with_momentum = (
        local_training(perceptron, momentum=momentum, example_moments=True)
        for momentum in (0.0, 0.9)
    )
    weights = without.model.weights
    (a,) = without.train(weights, [Job(0, 0)])
    (b,) = with_momentum.train(weights, [Job(0, 0)])
    assert np.allclose(b.moments, 100 * a.moments, rtol=1e-4)
