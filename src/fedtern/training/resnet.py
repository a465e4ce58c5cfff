"""A small residual network with batch normalisation."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


def resnet8(num_classes: int = 10) -> nn.Module:
    """Return ResNet-8 for 32x32 images: three residual blocks of 16, 32 and 64 channels.

    It has 77,850 trained parameters. Its 7 layers of batch normalisation have 2 statistics for
    each of their 240 channels. MLPerf Tiny uses the same network for CIFAR-10 (Banbury et al.,
    2021); here, convolutions have no bias, because the batch normalisation after them has one.
    """
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        ResidualBlock(16, 16), ResidualBlock(16, 32), ResidualBlock(32, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes),
    )  # fmt: skip


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation, added to the block's input.

    If the numbers of channels differ, the block halves the image, and a 1x1 convolution changes the
    input to the new shape (He et al., 2016).

    Args:
        inputs: number of channels of the input.
        outputs: number of channels of the output.

    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's output for a batch of images."""
        hidden = functional.relu(self.first_norm(self.first(images)))
        hidden = self.second_norm(self.second(hidden))
        return functional.relu(hidden + self.shortcut(images))
