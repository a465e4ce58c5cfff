"""What a person knows about a federation before it begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedtern.advice import paper_thresholds
from fedtern.data.environment import Environment


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
        Environment(self.clients, self.participation, batch_size=self.batch_size)  # if it can be
        for name in ("of_classes", "parameters"):
            if not 1 <= getattr(self, name) < 1 << 63:
                raise ValueError(
                    f"{name} must be at least 1 and below 2**63, got {getattr(self, name)}"
                )
        if not 1 <= self.classes <= self.of_classes:
            raise ValueError(
                f"classes must be between 1 and the {self.of_classes} there are, got {self.classes}"
            )
        for name in ("up", "down"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be a positive speed, got {getattr(self, name):g} bit/s"
                )
        for name in ("latency", "step"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be a number of seconds, not negative, got {getattr(self, name)}"
                )
        if not 0 <= self.within < 1:
            raise ValueError(
                f"within must be less than 100 points, and not negative, got {100 * self.within:g}"
            )

    @property
    def skewed(self) -> bool:
        """Whether clients hold data that differ: not all of the classes each."""
        return paper_thresholds.non_iid(self.classes, self.of_classes)

    @property
    def small_batches(self) -> bool:
        """Whether clients train on few examples at a time."""
        return paper_thresholds.small_batches(self.batch_size)

    @property
    def rarely(self) -> bool:
        """Whether a client takes part in few of the rounds."""
        return paper_thresholds.low_participation(self.participation)

    @property
    def momentum_harms(self) -> bool:
        """Whether momentum is what the paper would avoid."""
        return paper_thresholds.momentum_harms(
            self.batch_size, self.participation, skewed=self.skewed
        )
