"""What a person knows about a federation before it begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

# What the paper calls small and low is below its own base; of classes, the text names five of ten.
SMALL_BATCH, LOW_PARTICIPATION, FEW_CLASSES = 20, 0.1, 0.5


@dataclass(frozen=True)
class Situation:
    """Clients, their data and their network.

    Args:
        clients: how many there are in all.
        participation: the share of them that takes part in each round.
        classes: how many classes each client holds, of ``of_classes``.
        of_classes: how many there are.
        batch_size: of each local iteration.
        parameters: of the model.
        up: bits a second that a client can send.
        down: bits a second that it can receive.
        latency: seconds that a round takes besides what is sent and computed.
        step: seconds that a client takes for one iteration.
        within: how far below the best accuracy the target is.

    """

    clients: int = 100
    participation: float = 0.1
    classes: int = 10
    of_classes: int = 10
    batch_size: int = 20
    parameters: int = 1_000_000
    up: float = 1e6
    down: float = 1e7
    latency: float = 0.1
    step: float = 0.0
    within: float = 0.02

    def __post_init__(self) -> None:
        for name in ("clients", "of_classes", "batch_size", "parameters"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation must be in (0, 1], got {self.participation}")
        if not 1 <= self.classes <= self.of_classes:
            raise ValueError(
                f"classes must be between 1 and the {self.of_classes} there are, got {self.classes}"
            )
        for name in ("up", "down"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a positive speed, got {getattr(self, name)}")
        for name in ("latency", "step", "within"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    @property
    def skewed(self) -> bool:
        """Whether clients hold data that differ: less than half of the classes each."""
        return self.classes < FEW_CLASSES * self.of_classes

    @property
    def small_batches(self) -> bool:
        """Whether clients train on fewer examples at a time than the paper's 20."""
        return self.batch_size < SMALL_BATCH

    @property
    def rarely(self) -> bool:
        """Whether a client takes part less often than in every tenth round."""
        return self.participation < LOW_PARTICIPATION
