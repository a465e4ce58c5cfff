"""Small tasks with everything that a model, a loss or an optimiser can have.

Importable without the other test modules, so that processes of an engine can import it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from fedtern.data import Dataset
from fedtern.training import Metric, Task

_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((240, 1, 6, 6)).astype(np.float32)
_SUMS = _X.sum((1, 2, 3))
IMAGES = Dataset(
    "any-images", _X[40:], (_SUMS > 0).astype(int)[40:], _X[:40], (_SUMS > 0).astype(int)[:40], 2
)
NUMBERS = Dataset(
    "any-numbers",
    _X[40:].reshape(200, 36).astype(np.float64),
    _SUMS[40:, None].astype(np.float64),
    _X[:40].reshape(40, 36).astype(np.float64),
    _SUMS[:40, None].astype(np.float64),
    None,
    standardise=False,
)
_TEXT = _RNG.integers(0, 20, (240, 9)).astype(np.uint8)
TEXT = Dataset(
    "any-text", _TEXT[40:, :-1], _TEXT[40:, 1:], _TEXT[:40, :-1], _TEXT[:40, 1:], None,
    groups=np.arange(200) % 8, standardise=False,
)  # fmt: skip


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )


class Tied(nn.Module):
    """A language model whose input and output share a matrix; the mask is not part of it."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 20, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(8, 1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.mix(self.embedding(tokens) * self.mask))
        return scores.transpose(1, 2)


def adapters() -> nn.Module:
    model = nn.Sequential(nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    return model


def adam(parameters):
    return torch.optim.Adam(parameters, 0.01)


def halve(iteration: int) -> float:
    return 0.5 ** (iteration // 4)


PERPLEXITY = Metric("perplexity", cross_entropy, best="lower", transform=math.exp)

TASKS = {
    task.name: task
    for task in (
        Task("any-average", IMAGES, batch_norm, 0.05, 8),
        Task("any-latest", IMAGES, batch_norm, 0.05, 8, carry="latest", schedule=halve),
        Task("any-local", IMAGES, batch_norm, 0.05, 8, carry="local"),
        Task("any-adam", IMAGES, batch_norm, 0.05, 8, optimizer=adam, schedule=halve),
        Task("any-adam-local", IMAGES, batch_norm, 0.05, 8, optimizer=adam, carry="local"),
        Task("any-bfloat16", IMAGES, lambda: batch_norm().to(torch.bfloat16), 0.05, 8),
        Task("any-float64", IMAGES, lambda: batch_norm().double(), 0.05, 8, optimizer=adam),
        Task("any-text", TEXT, Tied, 0.1, 8, metrics=[PERPLEXITY]),
        Task("any-regression", NUMBERS, adapters, 0.01, 8, loss=mse_loss),
        Task("any-subset", IMAGES, batch_norm, 0.05, 8, trainable=["4.*"]),
    )
}
"""Tasks by name."""

# Found as attributes of this module by processes that import it.
globals().update({name.replace("-", "_"): task for name, task in TASKS.items()})
