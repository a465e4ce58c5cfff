"""Hyperparameters of SGD, and their default values for every task.

The values of the paper's four tasks are those of its Table II.

This module does not need torch, so that experiments can be described and finished runs can be read
without it. ``fedtern.training.tasks`` adds the models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedtern.core.names import look_up

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Sgd:
    """Constant hyperparameters of stochastic gradient descent on a client.

    Raises:
        ValueError: A value is out of range.

    """

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        for name in ("learning_rate", "weight_decay"):
            if getattr(self, name) > _LARGEST_FLOAT32:
                raise ValueError(
                    f"{name} must be at most {_LARGEST_FLOAT32:g}, the largest float32, got"
                    f" {getattr(self, name)}"
                )

    @property
    def reach(self) -> float:
        """Total distance that a unit gradient moves a weight, including through momentum."""
        return self.learning_rate / (1 - self.momentum)


@dataclass(frozen=True)
class TaskDefaults:
    """Dataset and hyperparameters of a task; experiments use them unless they set their own.

    Attributes:
        dataset: Name of the dataset.
        learning_rate: Learning rate of SGD.
        iterations: Local iterations of a whole run, over all rounds.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.

    """

    dataset: str
    learning_rate: float
    iterations: int
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}")
        Sgd(self.learning_rate, self.momentum, self.weight_decay)  # raises if out of range


TASK_DEFAULTS: dict[str, TaskDefaults] = {
    "logistic-digits": TaskDefaults("digits", 0.1, 1_000),
    "mlp-digits": TaskDefaults("digits", 0.1, 1_000),
    "logistic-mnist": TaskDefaults("mnist", 0.04, 5_000),
    "mlp-fashion": TaskDefaults("fashion-mnist", 0.1, 5_000),
    "lstm-fashion": TaskDefaults("fashion-mnist", 0.1, 20_000, momentum=0.9),
    "cnn-kws": TaskDefaults("speech-commands", 0.1, 10_000),
    "vgg11s-cifar10": TaskDefaults("cifar10", 0.016, 20_000, momentum=0.9, weight_decay=5e-5),
    "resnet8-cifar10": TaskDefaults("cifar10", 0.15, 5_000),
    "transformer-text": TaskDefaults("python-topics", 0.3, 2_000),
    "lora-text": TaskDefaults("python-topics", 1.0, 500),
    "mlp-regression": TaskDefaults("diabetes", 0.05, 500),
}
"""Defaults by task name; the command line uses the first task by default.

``fedtern.training.register_task`` adds an entry for each task that it registers.
"""


def task_defaults(task: str) -> TaskDefaults:
    """Return the defaults of a task.

    Raises:
        ValueError: No task has this name; the message suggests similar names.

    """
    return look_up(task, TASK_DEFAULTS, "task")
