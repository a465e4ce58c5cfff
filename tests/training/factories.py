"""Small datasets, models and trainers for tests of training."""

from __future__ import annotations

import numpy as np
from torch import nn

from fedtern import Environment
from fedtern.data import Dataset
from fedtern.data.hyperparameters import Sgd
from fedtern.federation.client_session import Job
from fedtern.training import Task
from fedtern.training.flat import FlatModel
from fedtern.training.local_training import LocalTraining

SIX_CLIENTS = Environment(clients=6, participation=0.5, classes_per_client=2, batch_size=7)


def images(size: int = 150) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (size, 1, 8, 8), np.uint8)
    return Dataset("images", x[30:], np.arange(size - 30) % 4, x[:30], np.arange(30) % 4, 4)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 4))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 4)
    )


def local_training(
    model, steps=1, momentum=0.9, example_moments=False, restriction=None, augment=None
) -> LocalTraining:
    data = images()
    task = Task("t", data, model, 0.1, 1, augment=augment)
    options = {} if restriction is None else {"restriction": restriction}
    return LocalTraining(
        FlatModel(task.build(0)),
        task.examples(data),
        SIX_CLIENTS.split_dataset(data, 0),
        Sgd(0.1, momentum, 1e-3),
        batch_size=7,
        local_steps=steps,
        example_moments=example_moments,
        seed=5,
        **options,
    )


def every_other(client: int, _round: int):
    """Restrict a client's steps to the even or to the odd entries."""

    def restrict(direction: np.ndarray) -> None:
        direction[client % 2 :: 2] = 0

    return restrict


def five_jobs(size: int, *, velocity: bool) -> list[Job]:
    """Return jobs of five clients; every second one continues with a velocity."""
    vector = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    return [Job(i, 3 * i, 1, vector if velocity and i % 2 else None) for i in range(5)]
