"""Privacy loss of repeated Gaussian noise, computed by Google's dp-accounting."""

from __future__ import annotations

import math
from functools import lru_cache

from fedtern.core.extras import require
from fedtern.core.protocol import PrivacySpent


def require_accounting() -> None:
    """Raise a ``MissingExtraError`` if dp-accounting is not installed."""
    require("dp_accounting", "privacy", "differential privacy")


@lru_cache(maxsize=4096)
def privacy_loss(noise_multiplier: float, participations: int, delta: float) -> float:
    """Return the epsilon of a client after a number of participations.

    k Gaussian mechanisms, each with noise of z times the sensitivity and each chosen with the
    knowledge of the earlier results, compose exactly to one Gaussian mechanism with noise
    z / sqrt(k) (Dong, Roth and Su, 2022). dp-accounting computes its epsilon by the exact formula
    of Balle and Wang (2018).

    Args:
        noise_multiplier: standard deviation of the noise, divided by the sensitivity.
        participations: number of rounds that counted the client.
        delta: probability with which the bound may fail.

    Raises:
        MissingExtraError: dp-accounting is not installed.

    """
    if participations == 0:
        return 0.0
    mechanism = require("dp_accounting.gaussian_mechanism", "privacy", "differential privacy")
    sigma = noise_multiplier / math.sqrt(participations)
    return float(mechanism.get_epsilon_gaussian(sigma, delta))


def largest_participations(noise_multiplier: float, delta: float, budget: float) -> int:
    """Return the largest number of participations whose epsilon is within a budget."""
    high = 1
    while privacy_loss(noise_multiplier, high, delta) <= budget:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if privacy_loss(noise_multiplier, middle, delta) <= budget:
            low = middle
        else:
            high = middle
    return low


def spent(
    noise_multiplier: float, participations: int, delta: float, budget: float | None
) -> PrivacySpent:
    """Return the privacy loss of a client after a number of participations."""
    epsilon = privacy_loss(noise_multiplier, participations, delta)
    return PrivacySpent(epsilon, delta, participations, budget)


def check_settings(
    clip: float, noise_multiplier: float, delta: float, budget: float | None
) -> None:
    """Check settings that all mechanisms share.

    Raises:
        ValueError: a setting is out of range, or the budget allows no round.
        MissingExtraError: dp-accounting is not installed.

    """
    for name, value in (("clip", clip), ("noise_multiplier", noise_multiplier)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta}")
    if budget is not None and not 0 < budget < math.inf:
        raise ValueError(f"budget must be positive and finite, got {budget}")
    require_accounting()


def check_budget(noise_multiplier: float, delta: float, budget: float | None) -> None:
    """Raise a ``ValueError`` if a budget does not even allow one participation."""
    if budget is not None and (once := privacy_loss(noise_multiplier, 1, delta)) > budget:
        raise ValueError(
            f"budget {budget:g} allows no round: one participation costs epsilon {once:.3g} at"
            f" delta {delta:g}; raise the budget or the noise"
        )
