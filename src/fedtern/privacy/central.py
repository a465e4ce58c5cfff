"""The central model: a server that the clients trust adds the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtern.core.layout import Vector
from fedtern.core.methods import Method
from fedtern.core.methods.aggregate_text import AGGREGATE, RobustAggregate, format_aggregate
from fedtern.core.methods.aggregation import Mean
from fedtern.core.protocol import PrivacySpent, Terms
from fedtern.core.updates import Update
from fedtern.privacy.accounting import check_budget, check_settings, privacy_loss, spent
from fedtern.privacy.clipping import add_clipped
from fedtern.privacy.noise import Wide, gaussian_noise
from fedtern.privacy.secure.method import shared_positions_of

_STREAM = 4  # of random numbers


@dataclass(frozen=True)
class CentralPrivacy:
    """Client-level differential privacy of all broadcasts, with a trusted server.

    In each round, the server scales every decoded upload to an L2 norm of at most ``clip``, adds
    them, adds Gaussian noise of standard deviation ``noise_multiplier * clip`` to each value of the
    sum, and divides by ``clients_per_round``. Compression of the result is post-processing.

    >>> privacy = CentralPrivacy(clip=0.1, noise_multiplier=4.0, clients_per_round=100)
    >>> print(privacy.spent(participations=20))
    epsilon 4.98, delta 1e-05

    Args:
        clip: largest L2 norm of an upload.
        noise_multiplier: standard deviation of the noise on the sum, divided by ``clip``.
        clients_per_round: the expected size of a cohort. It divides every sum: the actual number of
            uploads would tell whether one client took part.
        delta: probability with which the bound on the privacy loss may fail. Choose less than one
            divided by the number of clients.
        budget: largest epsilon of any client; None for no limit.
        seed: random seed of the noise, for simulations only. By default the noise comes from the
            operating system.

    Raises:
        ValueError: a setting is out of range, or the budget allows no round.
        MissingExtraError: dp-accounting is not installed.

    """

    clip: float
    noise_multiplier: float
    clients_per_round: int
    delta: float = 1e-5
    budget: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_settings(self.clip, self.noise_multiplier, self.delta, self.budget)
        check_budget(self.noise_multiplier, self.delta, self.budget)
        if self.clients_per_round < 1:
            raise ValueError(f"clients_per_round must be at least 1, got {self.clients_per_round}")

    def check(self, terms: Terms) -> None:
        """Check that everything that clients contribute to a broadcast gets noise.

        Raises:
            ValueError: the method does not average updates, weights them by their examples, or has
                secure aggregation; or the model has carried tensors.

        """
        check_mean(terms.method)
        refuse_unprotected(terms)

    def describe(self) -> dict[str, Any]:
        """Return the settings that must not change during a federation."""
        return {
            "model": "central",
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
            "clients_per_round": self.clients_per_round,
        }

    def clipped_mean(self, updates: Sequence[Update], size: int) -> Wide:
        """Return the mean without noise; one client changes its norm by ``sensitivity`` at most."""
        total = np.zeros(size, np.float64)
        for update in updates:
            add_clipped(total, update, self.clip)
        return total / self.clients_per_round

    @property
    def sensitivity(self) -> float:
        """The largest L2 norm by which one client can change ``clipped_mean``."""
        return self.clip / self.clients_per_round

    def release(self, updates: Sequence[Update], size: int, round: int) -> Vector:
        """Return the noised mean of updates; see ``CentralMechanism``."""
        key = None if self.seed is None else (self.seed, _STREAM, round)
        mean = self.clipped_mean(updates, size)
        mean += gaussian_noise(size, self.noise_multiplier * self.sensitivity, key)
        return mean.astype(np.float32)

    def spent(self, participations: int) -> PrivacySpent:
        """Return the privacy loss of a client after a number of participations."""
        return spent(self.noise_multiplier, participations, self.delta, self.budget)

    def allows(self, participations: int) -> bool:
        """Whether the budget allows a number of participations of one client."""
        if self.budget is None:
            return True
        return privacy_loss(self.noise_multiplier, participations, self.delta) <= self.budget


def check_mean(method: Method) -> None:
    """Raise a ``ValueError`` if a method does not take the mean of updates without weights."""
    aggregate = method.aggregate
    if AGGREGATE in method.parameters and isinstance(aggregate, RobustAggregate):
        raise ValueError(
            f"central differential privacy does not support aggregate={format_aggregate(aggregate)}"
            ": it clips and averages the uploads itself; remove the aggregation, or use the local"
            " model"
        )
    if not isinstance(aggregate, Mean):
        raise ValueError(
            f"differential privacy needs a method that averages updates, and"
            f" {method.name or 'this one'} has aggregation {aggregate.part_id!r}; use stc"
        )
    if aggregate.weighted:
        raise ValueError(
            "differential privacy does not support weighted=True: the number of a client's"
            " examples is private; use weighted=False"
        )


def refuse_unprotected(terms: Terms) -> None:
    """Raise a ``ValueError`` if clients send anything without clipping and noise."""
    if shared_positions_of(terms.method) is not None:
        raise ValueError(
            f"differential privacy does not support {terms.method.name}: masks hide the uploads"
            " that it would clip, and the positions of a leader get no noise; use stc"
        )
    if terms.layout.carried:
        raise ValueError(
            f"differential privacy does not support carried tensors such as"
            f" {terms.layout.carried[0].name!r}, which are sent as they are; use a model without"
            " them, for example with GroupNorm in the place of BatchNorm"
        )
