"""The tasks with batch normalisation, text, adapters and regression, in small federations."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from fedtern import Environment, simulate, stc
from fedtern.core.methods import make_method
from fedtern.data import Dataset
from fedtern.data.hyperparameters import TASK_DEFAULTS
from fedtern.data.tables import TARGET_SCALE
from fedtern.training import TASKS, get_task, register_task
from fedtern.training.schedules import InverseDecay

TEXT = Environment(clients=20, participation=0.25, batch_size=4, split="natural")


def images(count, rng):
    """Return random images, which are brighter for higher class numbers."""
    labels = np.arange(count) % 10
    pixels = rng.integers(0, 60, (count, 3, 32, 32)) + 19 * labels[:, None, None, None]
    return pixels.astype(np.uint8), labels


@pytest.fixture(autouse=True)
def no_further_tasks():
    """Remove the tasks that a test registers."""
    with patch.dict(TASKS), patch.dict(TASK_DEFAULTS):
        yield


@pytest.fixture
def small_resnet():
    """The name of a task like resnet8-cifar10, with artificial images."""
    rng = np.random.default_rng(0)
    data = Dataset("bright", *images(400, rng), *images(100, rng), num_classes=10, scale=255)
    task = replace(get_task("resnet8-cifar10"), name="small-resnet", dataset=data)
    return register_task(task, replace=True).name


def scores(task, iterations, environment, method=None, **options):
    """Return the last evaluation of a federation."""
    *_, last = simulate(
        task,
        method=method or stc(1 / 20, 1 / 20),
        environment=environment,
        iterations=iterations,
        evaluate_every=iterations,
        workers=0,
        **options,
    )
    return last


def test_resnet8_learns_with_averaged_statistics(small_resnet):
    few = Environment(clients=4, participation=0.5, batch_size=10, split="iid")
    last = scores(small_resnet, 60, few)
    assert last.accuracy > 0.3


def test_statistics_of_batch_normalisation_are_counted_in_uploads(small_resnet):
    few = Environment(clients=4, participation=0.5, batch_size=4, split="iid")
    averaged = scores(small_resnet, 3, few)
    register_task(replace(get_task(small_resnet), name="local-resnet", carry="local"), replace=True)
    local = scores("local-resnet", 3, few)
    statistics = 480 * 4  # two float32 for each of 240 channels
    difference = (averaged.up_bytes - local.up_bytes) / (2 * 3)
    assert statistics < difference < statistics + 150


@pytest.mark.slow
def test_resnet8_learns_from_real_images(real_data):
    few = Environment(clients=10, participation=0.5, batch_size=8, split="iid")
    last = scores("resnet8-cifar10", 60, few, data=real_data)
    assert last.accuracy > 0.15


def test_the_transformer_learns_from_documents_of_several_clients():
    last = scores("transformer-text", 15, TEXT)
    assert last.metrics["perplexity"] == pytest.approx(math.exp(last.loss), rel=1e-6)
    assert last.metrics["perplexity"] < 60  # 256 for a uniform guess
    assert 0 < last.metrics["accuracy"] < 1
    assert last.primary[0] == "perplexity"


def test_a_tied_embedding_is_sent_once():
    plain = make_method({"name": "sgd"})
    last = scores("transformer-text", 1, TEXT, plain)
    assert 4 * 120_576 <= last.up_bytes_mean < 4 * 120_576 + 200


def test_adapters_improve_on_their_base_and_only_they_are_sent():
    plain = make_method({"name": "sgd"})
    first = scores("lora-text", 1, TEXT, plain)
    last = scores("lora-text", 20, TEXT, plain)
    assert last.metrics["perplexity"] < first.metrics["perplexity"] - 0.2
    assert 4 * 8_192 <= first.up_bytes_mean < 4 * 8_192 + 200


def test_regression_explains_a_third_of_the_variance():
    few = Environment(clients=20, participation=0.5, batch_size=10, split="iid")
    last = scores("mlp-regression", 150, few)
    assert last.metrics["rmse"] == pytest.approx(TARGET_SCALE * math.sqrt(last.loss), rel=1e-5)
    assert last.metrics["r2"] > 0.33
    assert list(last.metrics) == ["rmse", "r2"]


def test_the_coefficient_of_determination_is_that_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    task = get_task("mlp-regression")
    data = task.load()
    model = task.flat_model(seed=1)
    _, test = task.examples(data)
    with torch.no_grad():
        outputs = model.module(test.batch(np.arange(len(test)))[0]).numpy()
    expected = sklearn.r2_score(data.test_labels, outputs)
    assert model.evaluate(test).metrics["r2"] == pytest.approx(expected, rel=1e-4)


def test_a_schedule_that_never_decays_is_an_error():
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        InverseDecay(0)
