"""The four tasks of the paper, on their data or on random data of the same shape."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import torch
from torch import nn

from fedtern.core.errors import FedternError
from fedtern.data import Dataset
from fedtern.training.examples import Examples
from fedtern.training.tasks import Task, get_task

SHAPES = {
    "mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "speech-commands": (1, 32, 32),
    "cifar10": (3, 32, 32),
}
TASKS = ("logistic-mnist", "cnn-kws", "lstm-fashion", "vgg11s-cifar10")


def load(name: str) -> tuple[Task, Dataset, str]:
    """Return the task, its dataset, and a note if the data is random. Downloads nothing."""
    task = get_task(name)
    if "FEDTERN_DATA" not in os.environ:
        return task, noise(str(task.dataset)), "random data (FEDTERN_DATA is not set)"
    try:
        return task, task.load(), ""
    except (FedternError, OSError, ValueError) as error:
        return task, noise(str(task.dataset)), f"random data: {error}"


def noise(name: str, count: int = 10_000) -> Dataset:
    """Random examples with the shape and type of a dataset; training on them takes as long."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, *SHAPES[name]), np.uint8)
    inputs = pixels.astype(np.float32) if name == "speech-commands" else pixels
    labels = rng.integers(0, 10, count)
    return Dataset(name, inputs, labels, inputs[:1000], labels[:1000], 10, scale=255.0)


@cache
def prepared(name: str) -> tuple[Task, nn.Module, Examples]:
    """Return the task, its model and training examples, cached per process."""
    torch.set_num_threads(1)
    task, dataset, _ = load(name)
    return task, task.build(0), task.examples(dataset)[0]
