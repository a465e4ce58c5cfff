"""The built-in tasks, and tasks of users."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedtern.core.extras import install_command
from fedtern.data import DATASETS, Dataset
from fedtern.data.hyperparameters import TASK_DEFAULTS
from fedtern.runs import Experiment
from fedtern.training import TASKS, Batches, CropFlip, Task, get_task, register_task


def accuracy_after(name, iterations, batch_size, data_dir=None):
    """Return the test accuracy after SGD on the whole training set."""
    task = get_task(name)
    train, test = task.examples(task.load(data_dir))
    model = task.build(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), task.learning_rate, task.momentum)
    for batch in Batches(np.arange(len(train)), batch_size, seed=0, client=0).take(0, iterations):
        inputs, labels = train.batch(*batch)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    with torch.no_grad():
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in test.chunks(1_000))
    return correct / len(test)


def test_the_first_task_needs_no_files():
    assert next(iter(TASKS)) == "logistic-digits"
    assert len(get_task("logistic-digits").load().train_labels) == 1_500


def test_every_dataset_has_a_task_and_every_task_a_dataset():
    assert {task.dataset for task in TASKS.values()} == set(DATASETS)


@pytest.mark.parametrize(
    ("name", "learning_rate", "momentum", "iterations", "weight_decay"),
    [
        ("vgg11s-cifar10", 0.016, 0.9, 20_000, 5e-5),
        ("cnn-kws", 0.1, 0.0, 10_000, 0),
        ("lstm-fashion", 0.1, 0.9, 20_000, 0),
        ("logistic-mnist", 0.04, 0.0, 5_000, 0),
    ],
)
def test_tasks_have_the_hyperparameters_of_table_ii(
    name, learning_rate, momentum, iterations, weight_decay
):
    task = get_task(name)
    assert (task.learning_rate, task.momentum, task.iterations, task.weight_decay) == (
        learning_rate,
        momentum,
        iterations,
        weight_decay,
    )


def test_only_cifar10_is_augmented():
    augmented = {name: task.augment for name, task in TASKS.items() if task.augment}
    assert augmented == {"vgg11s-cifar10": CropFlip(4), "resnet8-cifar10": CropFlip(4)}


def test_the_lstm_receives_images_of_32_by_32(tmp_path):
    pixels = np.zeros((1, 1, 28, 28), np.uint8)
    train, _ = get_task("lstm-fashion").examples(Dataset("one", pixels, [0], pixels, [0], 10))
    assert train.batch(np.array([0]))[0].shape == (1, 1, 32, 32)


@pytest.mark.parametrize(("name", "accuracy"), [("logistic-digits", 0.95), ("mlp-digits", 0.96)])
def test_the_tasks_on_digits_reach_a_high_accuracy(name, accuracy):
    assert accuracy_after(name, 600, 100) >= accuracy


def test_logistic_regression_reaches_92_percent_on_mnist(real_data):
    assert accuracy_after("logistic-mnist", 2_500, 200, real_data) >= 0.92


def test_a_registered_task_is_available_by_its_name():
    rows = np.eye(4, dtype=np.float32)
    data = Dataset("eye", rows, np.arange(4) % 2, rows, np.arange(4) % 2, num_classes=2)
    mine = register_task(Task("mine", data, lambda: nn.Linear(4, 2), 0.1, iterations=10))
    assert get_task("mine") is mine
    assert mine.load() is data
    with pytest.raises(ValueError, match="task 'mine' already exists; choose another name"):
        register_task(mine)
    assert register_task(mine, replace=True) is mine


def test_experiments_of_a_registered_task_use_its_defaults():
    rows = np.eye(4, dtype=np.float32)
    data = Dataset("eye", rows, np.arange(4) % 2, rows, np.arange(4) % 2, num_classes=2)
    register_task(Task("mine", data, lambda: nn.Linear(4, 2), 0.3, iterations=10, momentum=0.5))
    experiment = Experiment.of("mine", "stc")
    assert (experiment.learning_rate, experiment.iterations, experiment.momentum) == (0.3, 10, 0.5)
    assert TASK_DEFAULTS["mine"].dataset == "eye"


def test_every_built_in_task_has_defaults_and_a_model():
    assert list(TASKS) == list(TASK_DEFAULTS)
    assert {name: task.defaults for name, task in TASKS.items()} == TASK_DEFAULTS


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("logistic-mnits", "logistic-mnist"),
        ("vgg11-cifar10", "vgg11s-cifar10"),
        ("kws", "cnn-kws"),
        ("zzz", "Available: logistic-digits"),
    ],
)
def test_an_unknown_task_is_an_error_that_suggests_names(typed, meant):
    with pytest.raises(ValueError, match=rf"Unknown task '{typed}'\. .*{meant}"):
        get_task(typed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name must not be empty"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative, got -1.0"),
    ],
)
def test_an_invalid_hyperparameter_is_an_error_that_names_it(change, message):
    valid = {"name": "t", "dataset": "digits", "model": nn.Identity, "learning_rate": 0.1}
    with pytest.raises(ValueError, match=message):
        Task(**{**valid, "iterations": 1, **change})


def test_importing_training_without_torch_is_an_error_with_the_install_command():
    code = "import sys; sys.modules['torch'] = None; import fedtern.data, fedtern.training"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert install_command("torch") in result.stderr.splitlines()[-1]
