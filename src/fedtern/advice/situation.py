"""Description of a federation before it runs, and what to minimise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from fedtern.data.environment import Environment

Minimise = Literal["bytes", "bytes-up", "time", "cost"]
"""Objectives: bytes in both directions, uploaded bytes, time, or the price of the bytes."""

FLOPS_PER_STEP = 6
"""Operations per parameter and example: two in the forward pass, four in the backward pass."""


@dataclass(frozen=True)
class Situation:
    """Clients, their data, their network, and what to minimise.

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
        gflops: Speed of a client in training, in 10^9 operations per second. The default is of the
            order of a single-board computer.
        step: Seconds that a client takes for one local iteration. None for
            ``6 * parameters * batch_size / (gflops * 1e9)``, the operations of fully connected
            layers; convolutions and recurrent layers take more.
        within: Distance between the best recorded accuracy and the target.
        minimise: Objective: "bytes" in both directions, "bytes-up", "time" or "cost".
        price_up: Price that clients pay for each GB that they upload.
        price_down: Price that clients pay for each GB that they download.
        price_server: Price of each GB that the server sends.

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
    gflops: float = 1.0
    step: float | None = None
    within: float = 0.02
    minimise: Minimise = "bytes"
    price_up: float = 0.0
    price_down: float = 0.0
    price_server: float = 0.0

    def __post_init__(self) -> None:
        for name in ("clients", "of_classes", "batch_size", "parameters"):
            if not 1 <= getattr(self, name) < 1 << 63:
                raise ValueError(
                    f"{name} must be at least 1 and below 2**63, got {getattr(self, name)}"
                )
        Environment(self.clients, self.participation)  # raises if these are out of range
        if not 1 <= self.classes <= self.of_classes:
            raise ValueError(
                f"classes must be between 1 and {self.of_classes} (of_classes), got {self.classes}"
            )
        for name in ("up", "down"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be a positive, finite speed, got {getattr(self, name):g} bit/s"
                )
        if not 0 < self.gflops < math.inf:
            raise ValueError(f"gflops must be a positive, finite speed, got {self.gflops:g}")
        for name in ("latency", "step"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds < math.inf:
                raise ValueError(
                    f"{name} must be a finite number of seconds of at least 0, got {seconds}"
                )
        if not 0 <= self.within < 1:
            raise ValueError(
                f"within must be at least 0 and less than 100 points, got {100 * self.within:g}"
            )
        self._check_objective()

    def _check_objective(self) -> None:
        if self.minimise not in get_args(Minimise):
            raise ValueError(
                f"minimise must be one of {', '.join(get_args(Minimise))}, got {self.minimise!r}"
            )
        for name in ("price_up", "price_down", "price_server"):
            if not 0 <= getattr(self, name) < 1e12:
                raise ValueError(
                    f"{name} must be a price per GB of at least 0 and below 1e12, got"
                    f" {getattr(self, name)}"
                )
        if self.minimise == "cost" and not self.has_prices:
            raise ValueError(
                "minimise cost needs a price per GB: set price_up, price_down or price_server (on"
                " the command line --price-up, --price-down or --price-server)"
            )

    @property
    def cohort_size(self) -> int:
        """Number of clients that take part in each round."""
        return round(self.clients * self.participation)

    @property
    def has_prices(self) -> bool:
        """Whether bytes have a price."""
        return max(self.price_up, self.price_down, self.price_server) > 0

    @property
    def step_seconds(self) -> float:
        """Seconds of one local iteration: as given, or by ``gflops``."""
        if self.step is not None:
            return self.step
        return FLOPS_PER_STEP * self.parameters * self.batch_size / (self.gflops * 1e9)

    @property
    def non_iid(self) -> bool:
        """Whether each client holds only some of the classes."""
        return self.classes < self.of_classes

    @property
    def bandwidth_matters(self) -> bool:
        """Whether bandwidth is limited or costly.

        It is unless the objective is time, and uploading an uncompressed update takes at most as
        long as a round's latency.
        """
        return self.minimise != "time" or 32 * self.parameters / self.up > self.latency
