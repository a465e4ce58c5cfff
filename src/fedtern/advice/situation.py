"""Description of a federation before it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedtern.data.environment import Environment


@dataclass(frozen=True)
class Situation:
    """Clients, their data and their network.

    Args:
        clients: Number of clients.
        participation: Fraction of the clients that take part in each round.
        classes: Number of classes that each client holds.
        of_classes: Number of classes in the dataset.
        batch_size: Examples per local iteration.
        parameters: Number of parameters of the model.
        up: Upload speed of a client in bit/s.
        down: Download speed of a client in bit/s.
        latency: Seconds that a round takes in addition to transfer and training.
        step: Seconds that a client takes for one local iteration.
        within: Distance between the best recorded accuracy and the target.

    Raises:
        ValueError: A value is out of range.

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
        # Raises if these values are out of range.
        Environment(self.clients, self.participation, batch_size=self.batch_size)
        for name in ("of_classes", "parameters"):
            if not 1 <= getattr(self, name) < 1 << 63:
                raise ValueError(
                    f"{name} must be at least 1 and below 2**63, got {getattr(self, name)}"
                )
        if not 1 <= self.classes <= self.of_classes:
            raise ValueError(
                f"classes must be between 1 and {self.of_classes} (of_classes), got {self.classes}"
            )
        for name in ("up", "down"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be a positive, finite speed, got {getattr(self, name):g} bit/s"
                )
        for name in ("latency", "step"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be a finite number of seconds of at least 0, got"
                    f" {getattr(self, name)}"
                )
        if not 0 <= self.within < 1:
            raise ValueError(
                f"within must be at least 0 and less than 100 points, got {100 * self.within:g}"
            )

    @property
    def non_iid(self) -> bool:
        """Whether each client holds only some of the classes."""
        return self.classes < self.of_classes

    @property
    def bandwidth_bound(self) -> bool:
        """Whether uploading an uncompressed update takes longer than a round's latency."""
        return 32 * self.parameters / self.up > self.latency
