"""Privacy settings of an experiment, as they are stored with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from fedtern.privacy.central import CentralPrivacy
from fedtern.privacy.local import LocalPrivacy

PrivacyModel = Literal["central", "local"]


@dataclass(frozen=True)
class PrivacySettings:
    """Differential privacy of an experiment.

    Args:
        clip: largest L2 norm of a client's update.
        noise_multiplier: standard deviation of the noise, divided by ``clip``.
        delta: probability with which the bound on the privacy loss may fail.
        budget: largest epsilon of any client; None for no limit.
        model: "central" if the server adds the noise, "local" if each client does.

    Raises:
        ValueError: a setting is out of range.

    """

    clip: float
    noise_multiplier: float
    delta: float = 1e-5
    budget: float | None = None
    model: PrivacyModel = "central"

    def __post_init__(self) -> None:
        for name in ("clip", "noise_multiplier", "delta"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.budget is not None:
            object.__setattr__(self, "budget", float(self.budget))
        if self.model not in get_args(PrivacyModel):
            raise ValueError(f'the privacy model must be "central" or "local", got {self.model!r}')

    def guarantee(self, spent: Mapping[str, float]) -> str:
        """Return one sentence about the privacy that a run has.

        Args:
            spent: ``PrivacySpent.to_json()`` after the last round.

        """
        protected = "broadcasts" if self.model == "central" else "uploads"
        return (
            f"the {protected} are ({spent['epsilon']:.3g}, {spent['delta']:g})-differentially"
            f" private for every client after {spent['participations']:.0f} participations at"
            " most, without amplification by sampling, because participation is public (the"
            " noise of this simulation comes from its seed)"
        )

    def central(self, clients_per_round: int, seed: int | None = None) -> CentralPrivacy | None:
        """Return the mechanism of the server; None in the local model.

        Args:
            clients_per_round: the expected size of a cohort.
            seed: random seed of the noise, for simulations only.

        """
        if self.model != "central":
            return None
        return CentralPrivacy(
            self.clip, self.noise_multiplier, clients_per_round, self.delta, self.budget, seed
        )

    def local(self, seed: int | None = None) -> LocalPrivacy | None:
        """Return the mechanism of each client; None in the central model."""
        if self.model != "local":
            return None
        return LocalPrivacy(self.clip, self.noise_multiplier, self.delta, self.budget, seed)
