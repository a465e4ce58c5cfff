"""Settings of rounds: which clients take part, and when a round starts and finishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedtern.core.methods import Aggregate
from fedtern.core.methods.robust import min_uploads
from fedtern.data.environment import Environment
from fedtern.federation.presence import Presence


class CohortSelection(Protocol):
    """Selects the clients of each round."""

    @property
    def open(self) -> bool:
        """Whether clients that connect later may join a round that has started."""
        ...

    @property
    def ignores_presence(self) -> bool:
        """Whether clients are selected that are not present."""
        ...

    @property
    def max_size(self) -> int | None:
        """Size of the largest cohort; None if it depends on the number of clients present."""
        ...

    def choose(self, round: int, present: Sequence[int]) -> Sequence[int]:
        """Return the cohort of a round; an empty one to wait for more clients."""
        ...


@dataclass(frozen=True)
class AllClients:
    """All clients that are present, and those that connect during the round."""

    open: bool = field(default=True, init=False)
    ignores_presence: bool = field(default=False, init=False)
    max_size: None = field(default=None, init=False)

    def choose(self, round: int, present: Sequence[int]) -> Sequence[int]:
        """Return all clients that are present."""
        return present


@dataclass(frozen=True)
class Sample:
    """A random sample of the clients that are present.

    >>> Sample(size=2, seed=1).choose(7, [3, 4, 5, 6])
    [4, 5]

    Args:
        size: number of clients; all clients if fewer are present.
        fraction: fraction of the clients that are present, instead of ``size``.
        seed: random seed.

    """

    size: int | None = None
    fraction: float | None = None
    seed: int = 0
    open: bool = field(default=False, init=False)
    ignores_presence: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if (self.size is None) == (self.fraction is None):
            raise ValueError(
                f"pass either size or fraction, got size={self.size} and fraction={self.fraction}"
            )
        if self.size is not None and self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be in (0, 1], got {self.fraction}")

    @property
    def max_size(self) -> int | None:
        """The size, if it is fixed."""
        return self.size

    def choose(self, round: int, present: Sequence[int]) -> Sequence[int]:
        """Return the sample of a round."""
        if self.fraction is None:
            size = self.size
        else:
            size = max(int(self.fraction * len(present) + 0.5), 1)
        if size is None or size >= len(present):
            return present
        rng = np.random.default_rng([self.seed, 3, round])
        chosen = rng.choice(len(present), size, replace=False)
        return sorted(present[index] for index in chosen.tolist())


@dataclass(frozen=True)
class Scheduled:
    """The cohorts of an environment, as in a local simulation, whether they are present or not."""

    environment: Environment
    seed: int = 0
    open: bool = field(default=False, init=False)
    ignores_presence: bool = field(default=True, init=False)

    @property
    def max_size(self) -> int:
        """Size of the environment's cohorts."""
        return self.environment.cohort_size

    def choose(self, round: int, present: Sequence[int]) -> Sequence[int]:
        """Return the environment's cohort for a round."""
        return self.environment.cohort(self.seed, round)


@dataclass(frozen=True)
class RoundPolicy:
    """When rounds start and finish.

    Args:
        cohorts: selects the clients of each round.
        deadline: seconds that a cohort has to upload; None to wait for every client, even if it
            leaves.
        quorum: number of uploads that a round needs. With fewer it is void: no upload counts, and
            all return to the clients' residuals. Smaller cohorts are not selected.
        min_clients: number of clients that must be present before a cohort is selected; by default
            the quorum.
        rounds: number of rounds, void ones included; None for no end.
        grace: seconds after a connection before a cohort is selected. In this time clients report
            that they are present.
        rest: number of rounds for which a client is not selected after a deadline that it missed.
            It doubles with each further deadline that the client misses, up to 128 times as many
            rounds. An accepted upload ends the rest, and excuses one missed deadline. Resting
            clients are selected, too, if the others do not reach the quorum; 0 for no
            rests.

    Raises:
        ValueError: a setting is out of range, or no round could reach its quorum.

    """

    cohorts: CohortSelection = field(default_factory=AllClients)
    deadline: float | None = 60.0
    quorum: int = 1
    min_clients: int | None = None
    rounds: int | None = None
    grace: float = 1.0
    rest: int = 9

    def __post_init__(self) -> None:
        if self.deadline is not None and not 0 < self.deadline < 1e9:
            raise ValueError(f"deadline must be positive, got {self.deadline}")
        if self.quorum < 1:
            raise ValueError(f"quorum must be at least 1, got {self.quorum}")
        if self.cohorts.max_size is not None and self.quorum > self.cohorts.max_size:
            raise ValueError(
                f"quorum must be at most the cohort size {self.cohorts.max_size}, got {self.quorum}"
            )
        if self.min_clients is not None and self.min_clients < self.quorum:
            raise ValueError(
                f"min_clients must be at least the quorum {self.quorum}, got {self.min_clients}"
            )
        if self.rounds is not None and self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        if not self.grace >= 0:
            raise ValueError(f"grace must not be negative, got {self.grace}")
        if self.rest < 0:
            raise ValueError(f"rest must not be negative, got {self.rest}")

    @property
    def required_clients(self) -> int:
        """Number of clients that must be present before a cohort is selected."""
        return self.quorum if self.min_clients is None else self.min_clients

    def choose(self, round: int, presence: Presence) -> frozenset[int]:
        """Return the cohort of a round; an empty one if too few clients are present."""
        if not self.cohorts.ignores_presence and presence.count < self.required_clients:
            return frozenset()
        cohort = frozenset(self.cohorts.choose(round, presence.eligible(round)))
        if len(cohort) < self.quorum:
            cohort = frozenset(self.cohorts.choose(round, presence.available))
        return cohort if len(cohort) >= self.quorum else frozenset()


def check_quorum(aggregate: Aggregate, policy: RoundPolicy | None) -> RoundPolicy:
    """Return the policy, or by default one that fits an aggregation.

    Raises:
        ValueError: the policy finishes rounds with fewer uploads than the aggregation needs.

    """
    needed = min_uploads(aggregate)
    if policy is None:
        return RoundPolicy(quorum=needed)
    if policy.quorum < needed:
        raise ValueError(
            f"aggregation {aggregate.part_id!r} needs a quorum of at least {needed}, got"
            f" {policy.quorum}: it cannot combine fewer uploads"
        )
    return policy
