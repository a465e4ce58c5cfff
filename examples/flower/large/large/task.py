"""The model: linear layers without activation."""

from __future__ import annotations

from torch import nn


def make_model(layers: int, width: int) -> nn.Sequential:
    """Return a model with about ``layers * width ** 2`` parameters."""
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
