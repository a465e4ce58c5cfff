"""The constant hyper-parameters of stochastic gradient descent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

_MOST = float(np.finfo(np.float32).max)  # models are trained in no other numbers


@dataclass(frozen=True)
class Sgd:
    """How clients train between two messages."""

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
            if getattr(self, name) > _MOST:
                raise ValueError(
                    f"{name} must be at most {_MOST:g}, the largest float32, got"
                    f" {getattr(self, name)}"
                )

    @property
    def reach(self) -> float:
        """How far a unit gradient moves a weight in the end, through momentum, too."""
        return self.learning_rate / (1 - self.momentum)
