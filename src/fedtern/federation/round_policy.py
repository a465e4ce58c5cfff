"""When a round begins and ends, and with whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedtern.data.environment import Environment
from fedtern.federation.presence import Presence


class Cohorts(Protocol):
    """Who is called to which round."""

    @property
    def open(self) -> bool:
        """Whether those who come later may take part in a round as well."""
        ...

    @property
    def regardless(self) -> bool:
        """Whether it does not matter who is present."""
        ...

    @property
    def most(self) -> int | None:
        """The size of the largest cohort; None if that depends on who is present."""
        ...

    def choose(self, round: int, present: Sequence[int]) -> Sequence[int]:
        """The clients of a round; nobody to wait for others."""
        ...


@dataclass(frozen=True)
class Everybody:
    """All who are present, and who comes while a round is open."""

    open: bool = field(default=True, init=False)
    regardless: bool = field(default=False, init=False)
    most: None = field(default=None, init=False)

    def choose(self, round: int, present: Sequence[int]) -> Sequence[int]:
        """All of them."""
        return present


@dataclass(frozen=True)
class Sample:
    """So many of those who are present, or such a share of them, at random.

    >>> Sample(size=2, seed=1).choose(7, [3, 4, 5, 6])
    [4, 5]
    """

    size: int | None = None
    share: float | None = None
    seed: int = 0
    open: bool = field(default=False, init=False)
    regardless: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if (self.size is None) == (self.share is None):
            raise ValueError(f"give a size or a share, got {self.size} and {self.share}")
        if self.size is not None and self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}")

    @property
    def most(self) -> int | None:
        """The size, if there is one."""
        return self.size

    def choose(self, round: int, present: Sequence[int]) -> Sequence[int]:
        """As many as were asked for; all where there are fewer."""
        size = self.size if self.share is None else max(int(self.share * len(present) + 0.5), 1)
        if size is None or size >= len(present):
            return present
        rng = np.random.default_rng([self.seed, 3, round])
        chosen = rng.choice(len(present), size, replace=False)
        return sorted(present[at] for at in chosen.tolist())


@dataclass(frozen=True)
class Scheduled:
    """Those whom an environment names, whoever is present: what the local engine does."""

    environment: Environment
    seed: int = 0
    open: bool = field(default=False, init=False)
    regardless: bool = field(default=True, init=False)

    @property
    def most(self) -> int:
        """The environment's."""
        return self.environment.cohort_size

    def choose(self, round: int, present: Sequence[int]) -> Sequence[int]:
        """The round's cohort."""
        return self.environment.cohort(self.seed, round)


@dataclass(frozen=True)
class RoundPolicy:
    """When a round begins and ends.

    Args:
        cohorts: who is called.
        deadline: seconds that those have who were called; None to wait for all of them, however
            long, even if they leave.
        quorum: uploads without which a round does not count: they go back into the residuals. Nor
            is a cohort called that is smaller.
        least: clients that must be present before any are called; by default the quorum.
        rounds: after so many the federation ends, those that did not count included; None for
            never.
        grace: seconds after a connection before a first call, in which presence becomes known.

    """

    cohorts: Cohorts = field(default_factory=Everybody)
    deadline: float | None = 60.0
    quorum: int = 1
    least: int | None = None
    rounds: int | None = None
    grace: float = 1.0

    def __post_init__(self) -> None:
        if self.deadline is not None and not 0 < self.deadline < 1e9:
            raise ValueError(f"deadline must be positive, got {self.deadline}")
        if self.quorum < 1:
            raise ValueError(f"quorum must be at least 1, got {self.quorum}")
        if self.cohorts.most is not None and self.quorum > self.cohorts.most:
            raise ValueError(
                f"quorum must be at most {self.cohorts.most}, which is how many are called, got"
                f" {self.quorum}"
            )
        if self.least is not None and self.least < self.quorum:
            raise ValueError(
                f"least must be at least {self.quorum}, which is the quorum, got {self.least}"
            )
        if self.rounds is not None and self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        if not self.grace >= 0:
            raise ValueError(f"grace must not be negative, got {self.grace}")

    @property
    def needed(self) -> int:
        """How many must be present."""
        return self.quorum if self.least is None else self.least

    def choose(self, round: int, presence: Presence) -> frozenset[int]:
        """The clients of a round; nobody where too few are present for it to count."""
        if not self.cohorts.regardless and presence.count < self.needed:
            return frozenset()
        cohort = frozenset(self.cohorts.choose(round, presence.available))
        return cohort if len(cohort) >= self.quorum else frozenset()
