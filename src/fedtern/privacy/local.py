"""The local model: each client adds noise, and trusts nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtern.core.layout import Vector
from fedtern.core.methods.aggregation import Mean
from fedtern.core.methods.robust import ClippedMean
from fedtern.core.protocol import PrivacySpent, Terms
from fedtern.privacy.accounting import check_budget, check_settings, privacy_loss, spent
from fedtern.privacy.central import refuse_unprotected
from fedtern.privacy.clipping import clip_vector
from fedtern.privacy.noise import gaussian_noise

_STREAM = 5  # of random numbers


@dataclass(frozen=True)
class LocalPrivacy:
    """Local differential privacy of all uploads of a client.

    Before compression, the client scales its delta to an L2 norm of at most ``clip`` and adds
    Gaussian noise of standard deviation ``noise_multiplier * clip`` to each value. The residual
    accumulates only noised deltas. Two different datasets can move a delta by ``2 * clip``, so the
    accounting uses half the noise multiplier.

    Args:
        clip: largest L2 norm of a delta.
        noise_multiplier: standard deviation of the noise, divided by ``clip``.
        delta: probability with which the bound on the privacy loss may fail.
        budget: largest epsilon of this client; None for no limit.
        seed: random seed of the noise, for simulations only. By default the noise comes from the
            operating system.

    Raises:
        ValueError: a setting is out of range, or the budget allows no upload.
        MissingExtraError: dp-accounting is not installed.

    """

    clip: float
    noise_multiplier: float
    delta: float = 1e-5
    budget: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_settings(self.clip, self.noise_multiplier, self.delta, self.budget)
        check_budget(self.noise_multiplier / 2, self.delta, self.budget)

    def check(self, terms: Terms) -> None:
        """Check that everything in an upload is computed from noised deltas.

        Raises:
            ValueError: the method sends other statistics of the client's data or has secure
                aggregation, or the model has carried tensors.

        """
        if terms.method.up.feedback.uses_moments:
            raise ValueError(
                f"local differential privacy does not support {terms.method.name}, which selects"
                " values by the variance of a client's examples; use stc"
            )
        aggregate = terms.method.aggregate
        if isinstance(aggregate, Mean | ClippedMean) and aggregate.weighted:
            raise ValueError(
                "local differential privacy does not support weighted=True: the number of a"
                " client's examples is private; use weighted=False"
            )
        refuse_unprotected(terms)

    def describe(self) -> dict[str, Any]:
        """Return the settings that must not change during a federation."""
        return {"model": "local", "clip": self.clip, "noise_multiplier": self.noise_multiplier}

    def privatize(self, delta: Vector, client_id: int, round: int) -> Vector:
        """Return the clipped delta with noise; see ``LocalMechanism``."""
        key = None if self.seed is None else (self.seed, _STREAM, client_id, round)
        noised = clip_vector(delta, self.clip)
        noised += gaussian_noise(noised.size, self.noise_multiplier * self.clip, key)
        return noised.astype(np.float32)

    def spent(self, participations: int) -> PrivacySpent:
        """Return the privacy loss after a number of uploads."""
        return spent(self.noise_multiplier / 2, participations, self.delta, self.budget)

    def allows(self, participations: int) -> bool:
        """Whether the budget allows a number of uploads."""
        if self.budget is None:
            return True
        return privacy_loss(self.noise_multiplier / 2, participations, self.delta) <= self.budget
