"""ResNet-8: its size, its shapes and its statistics."""

from __future__ import annotations

import torch
from torch import nn

from fedtern.training.resnet import ResidualBlock, resnet8


def test_resnet8_has_the_documented_numbers_of_parameters_and_statistics():
    model = resnet8()
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert sum(p.numel() for p in model.parameters()) == 77_850
    assert len(norms) == 7
    assert sum(norm.num_features for norm in norms) == 240


def test_a_block_with_more_channels_halves_the_image():
    images = torch.randn(2, 16, 32, 32)
    assert ResidualBlock(16, 16)(images).shape == (2, 16, 32, 32)
    assert ResidualBlock(16, 32)(images).shape == (2, 32, 16, 16)


def test_a_block_adds_its_input():
    block = ResidualBlock(4, 4).eval()
    nn.init.zeros_(block.second.weight)
    images = torch.rand(1, 4, 8, 8)
    assert torch.equal(block(images), images)


def test_training_changes_the_statistics_and_evaluation_uses_them():
    torch.manual_seed(0)
    model = resnet8()
    images = torch.randn(20, 3, 32, 32)
    before = [buffer.clone() for buffer in model.buffers()]
    model(images)
    assert not any(map(torch.equal, model.buffers(), before))
    model.eval()
    torch.testing.assert_close(model(images)[:1], model(images[:1]))
