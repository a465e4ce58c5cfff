"""The model, the data of each node, and training."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

BATCH = 32
TEST = 297  # test examples; no node trains on them


class Net(nn.Module):
    """A network with 9,610 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 128)
        self.out = nn.Linear(128, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        scores: Tensor = self.out(functional.relu(self.hidden(pixels)))
        return scores


@cache
def load_data() -> tuple[Tensor, Tensor]:
    """Return 1,797 digits of 8 by 8 pixels, in the same order on all nodes."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = torch.tensor(digits.data[order] / 16, dtype=torch.float32)
    return pixels, torch.tensor(digits.target[order])


def share_of(partition: int, partitions: int) -> tuple[Tensor, Tensor]:
    """Return the examples of one node."""
    pixels, labels = load_data()
    return pixels[TEST + partition :: partitions], labels[TEST + partition :: partitions]


def train(net: Net, data: tuple[Tensor, Tensor], steps: int, rate: float, seed: int) -> float:
    """Take a few SGD steps and return the mean loss."""
    pixels, labels = data
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    rng = torch.Generator().manual_seed(seed)
    total = 0.0
    for _ in range(steps):
        batch = torch.randint(len(labels), (BATCH,), generator=rng)
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(pixels[batch]), labels[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item()
    return total / steps


@torch.inference_mode()
def test(net: Net, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Return loss and accuracy."""
    pixels, labels = data
    scores = net(pixels)
    accuracy = (scores.argmax(1) == labels).float().mean()
    return float(functional.cross_entropy(scores, labels)), float(accuracy)
