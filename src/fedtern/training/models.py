"""The paper's four models (Table II) and two small ones, in plain torch.

Each function makes a freshly initialised model from torch's global generator; ``Task.build`` seeds
that for the time of the call.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def logistic(num_inputs: int, num_classes: int = 10) -> nn.Module:
    """Logistic regression; 7,850 parameters on 784 inputs."""
    return nn.Sequential(nn.Flatten(), nn.Linear(num_inputs, num_classes))


def mlp(num_inputs: int, num_hidden: int, num_classes: int = 10) -> nn.Module:
    """One hidden layer of rectified units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(num_inputs, num_hidden),
        nn.ReLU(),
        nn.Linear(num_hidden, num_classes),
    )


def kws_cnn() -> nn.Module:
    """The keyword spotter: two 5 by 5 convolutions on 32 by 32 pictures; 876,938 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 5 * 5, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip


def vgg11s() -> nn.Module:
    """VGG11*: VGG11 with fewer channels, no dropout and no normalisation; 865,482 parameters.

    Convolutions start as in the authors' code: N(0, 2 / (k^2 out)), without bias.
    """
    layers: list[nn.Module] = []
    channels = 3
    for group in ((32,), (64,), (128, 128), (128, 128), (128, 128)):
        for width in group:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [
        nn.Flatten(),
        nn.Linear(128, 128), nn.ReLU(),
        nn.Linear(128, 128), nn.ReLU(),
        nn.Linear(128, 10),
    ]  # fmt: skip
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            _start_as_authors(layer)
    return nn.Sequential(*layers)


class RowLSTM(nn.Module):
    """Reads a square picture row by row and judges by the last state of two layers of 128 units.

    216,330 parameters on 32 by 32 pictures, which is what Table II counts; the paper's text has
    28 by 28.
    """

    def __init__(self, side: int = 32, num_units: int = 128, num_classes: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(side, num_units, num_layers=2, batch_first=True)
        self.head = nn.Linear(num_units, num_classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Class scores of a batch of (1, side, side) pictures."""
        states, _ = self.lstm(pictures.squeeze(1))
        scores: Tensor = self.head(states[:, -1])
        return scores


def _start_as_authors(layer: nn.Conv2d) -> None:
    spread = math.sqrt(2 / (layer.kernel_size[0] * layer.kernel_size[1] * layer.out_channels))
    with torch.no_grad():
        layer.weight.normal_(0, spread)
        if layer.bias is not None:
            layer.bias.zero_()
