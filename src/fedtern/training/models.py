"""The paper's four models (Table II) and small perceptrons.

Each function initialises a new model with torch's global generator; ``Task.build`` seeds it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def logistic(num_inputs: int, num_classes: int = 10) -> nn.Module:
    """Return a logistic regression; 7,850 parameters for 784 inputs."""
    return nn.Sequential(nn.Flatten(), nn.Linear(num_inputs, num_classes))


def mlp(num_inputs: int, num_hidden: int, num_classes: int = 10, num_layers: int = 1) -> nn.Module:
    """Return a perceptron with hidden layers of equal width and ReLU.

    With 784 inputs and two hidden layers of 200 units, it is the 2NN of McMahan et al. (2017) with
    199,210 parameters.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(num_layers):
        layers += [nn.Linear(num_inputs, num_hidden), nn.ReLU()]
        num_inputs = num_hidden
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_classes))


def kws_cnn() -> nn.Module:
    """Return the CNN for keywords: two 5x5 convolutions on 32x32 inputs; 876,938 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 5 * 5, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip


def vgg11s() -> nn.Module:
    """Return VGG11*: VGG11 with fewer channels, without dropout and normalisation.

    It has 865,482 parameters. Convolutions are initialised like in the authors' code: weights from
    N(0, 2 / (k^2 out)), biases zero.
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
            _initialise_convolution(layer)
    return nn.Sequential(*layers)


class RowLSTM(nn.Module):
    """Two LSTM layers that read a square image row by row; a linear layer on the last state.

    It has 216,330 parameters for 32x32 images, the number in Table II; the paper's text says 28x28.

    Args:
        side: width and height of the images.
        num_units: units of each LSTM layer.
        num_classes: number of classes.

    """

    def __init__(self, side: int = 32, num_units: int = 128, num_classes: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(side, num_units, num_layers=2, batch_first=True)
        self.head = nn.Linear(num_units, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class scores of a batch of (1, side, side) images."""
        states, _ = self.lstm(images.squeeze(1))
        scores: Tensor = self.head(states[:, -1])
        return scores


def _initialise_convolution(layer: nn.Conv2d) -> None:
    std = math.sqrt(2 / (layer.kernel_size[0] * layer.kernel_size[1] * layer.out_channels))
    with torch.no_grad():
        layer.weight.normal_(0, std)
        if layer.bias is not None:
            layer.bias.zero_()
