"""Interfaces of differential privacy. The package ``fedtern.privacy`` implements them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedtern.core.layout import Vector
from fedtern.core.protocol.terms import Terms
from fedtern.core.updates import Update


@dataclass(frozen=True)
class PrivacySpent:
    """The privacy loss of the client that took part in most rounds.

    Attributes:
        epsilon: the bound on the privacy loss, which fails with a probability of at most ``delta``.
        delta: that probability.
        participations: the number of rounds that counted this client.
        budget: the largest ``epsilon`` that is allowed; None for no limit.

    """

    epsilon: float
    delta: float
    participations: int
    budget: float | None = None

    def __str__(self) -> str:
        limit = "" if self.budget is None else f" of {self.budget:g}"
        return f"epsilon {self.epsilon:.3g}{limit}, delta {self.delta:g}"

    def to_json(self) -> dict[str, float]:
        """Return the values for a run's metrics."""
        spent = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "participations": float(self.participations),
        }
        return spent if self.budget is None else {**spent, "budget": self.budget}


class Mechanism(Protocol):
    """A source of noise with its accounting."""

    def check(self, terms: Terms) -> None:
        """Raise a ``ValueError`` if the model or the method would send values without noise."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the settings that must not change during a federation, as JSON."""
        ...

    def spent(self, participations: int) -> PrivacySpent:
        """Return the privacy loss of a client after a number of participations."""
        ...

    def allows(self, participations: int) -> bool:
        """Whether the budget allows a number of participations of one client."""
        ...


class CentralMechanism(Mechanism, Protocol):
    """Adds noise to the sum of a cohort's updates, on a server that clients trust."""

    def release(self, updates: Sequence[Update], size: int, round: int) -> Vector:
        """Return the noised mean of updates.

        Each call draws other noise, unless the mechanism has a seed. So the result must be recorded
        before any part of it leaves the server.

        Args:
            updates: the decoded updates, one for each counted client.
            size: the number of weights.
            round: the round.

        """
        ...


class LocalMechanism(Mechanism, Protocol):
    """Adds noise to a client's delta, before compression."""

    def privatize(self, delta: Vector, client_id: int, round: int) -> Vector:
        """Return the clipped delta with noise, as a new vector."""
        ...
