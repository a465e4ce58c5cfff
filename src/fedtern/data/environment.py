"""Who takes part in a federation, how often, and with which data (Table III)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from fedtern.data import Dataset, Split, by_class, by_group, dirichlet, iid, volume_fractions
from fedtern.data.dataset import Labels
from fedtern.data.splits import with_public

# What each kind of split goes by, of all that can be said of one.
_SPLIT_BY = {
    "classes": ("classes_per_client", "gamma", "alpha"),
    "iid": ("gamma", "alpha"),
    "dirichlet": ("concentration", "gamma", "alpha"),
    "natural": (),
}
SPLITS = tuple(_SPLIT_BY)
_SPLIT, _COHORT = 0, 1  # streams of random numbers that never meet


@dataclass(frozen=True)
class Environment:
    """The paper's base configuration, unless said otherwise.

    Args:
        clients: how many there are in all.
        participation: the share of them that takes part in each round.
        classes_per_client: how many classes each holds (``split="classes"``, Algorithm 5).
        batch_size: of each local iteration.
        gamma: concentration of the data on the first clients; 1 gives each the same share.
        alpha: the share of the data that is spread evenly whatever gamma says.
        split: "classes", "iid", "dirichlet" or "natural" (by who made the examples).
        concentration: of ``split="dirichlet"``; small values leave each client few classes.
        public: the share of the data that every client holds (Zhao et al., 2018).

    """

    clients: int = 100
    participation: float = 0.1
    classes_per_client: int = 10
    batch_size: int = 20
    gamma: float = 1.0
    alpha: float = 0.1
    split: str = "classes"
    concentration: float = 0.5
    public: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):  # 1 and 1.0 are the same environment, and give the same digest
            object.__setattr__(self, field.name, _plain(field, getattr(self, field.name)))
        if self.clients < 1:
            raise ValueError(f"clients must be at least 1, got {self.clients}")
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation must be in (0, 1], got {self.participation}")
        if not self.cohort_size:
            raise ValueError(
                f"participation {self.participation} of {self.clients} clients selects no one:"
                f" use at least {1 / self.clients:g}"
            )
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {self.split!r}")
        if not 0 <= self.public < 1:
            raise ValueError(f"public must be in [0, 1), got {self.public}")

    @property
    def cohort_size(self) -> int:
        """How many clients take part in each round."""
        return round(self.clients * self.participation)

    def check_options_apply(self) -> Environment:
        """Itself; an error where something is set that its split does not go by.

        For what a person has typed: environments that were trained in before stay what they are.
        """
        for name in {name: None for by in _SPLIT_BY.values() for name in by}:
            value, default = getattr(self, name), getattr(Environment, name)
            if name not in _SPLIT_BY[self.split] and value != default:
                users = [f'"{split}"' for split, by in _SPLIT_BY.items() if name in by]
                raise ValueError(
                    f'{name} {value} does nothing to split "{self.split}": leave it out, or choose'
                    f" split {' or '.join(users)}"
                )
        return self

    def cohort(self, seed: int, round: int) -> list[int]:
        """Who takes part in a round, ascending."""
        if self.cohort_size == self.clients:
            return list(range(self.clients))
        chosen = _rng(seed, _COHORT, round).choice(self.clients, self.cohort_size, replace=False)
        return sorted(chosen.tolist())

    def deal(self, dataset: Dataset, seed: int) -> Split:
        """Who holds which of a dataset's training examples."""
        if self.clients > dataset.train_labels.size:  # or so many could not even be counted out
            raise ValueError(
                f"some of {self.clients} clients would hold none of the"
                f" {dataset.train_labels.size} examples: use fewer clients"
            )
        rng = _rng(seed, _SPLIT)
        if not self.public:
            return self._deal(dataset.train_labels, dataset, rng)
        if self.split == "natural":
            raise ValueError('public data cannot be combined with split="natural"')
        deal = partial(self._deal, dataset=dataset, rng=rng)
        return with_public(dataset.train_labels, self.public, deal, rng)

    def _deal(self, labels: Labels, dataset: Dataset, rng: np.random.Generator) -> Split:
        fractions = volume_fractions(self.clients, self.gamma, self.alpha)
        if self.split == "iid":
            return iid(labels, fractions, rng)
        if self.split == "dirichlet":
            return dirichlet(labels, fractions, self.concentration, rng)
        if self.split == "natural":
            if dataset.groups is None:
                raise ValueError(
                    f"dataset {dataset.name!r} does not tell who made its examples: split"
                    ' "natural" needs that'
                )
            return by_group(dataset.groups, self.clients, rng)
        return by_class(labels, fractions, self.classes_per_client, rng)


def _rng(seed: int, *stream: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=stream))


def _plain(field: Field[Any], value: Any) -> Any:
    kinds: dict[str, Callable[[Any], Any]] = {"int": operator.index, "float": float, "str": str}
    try:
        return kinds[str(field.type)](value)
    except (TypeError, ValueError):
        raise ValueError(f"{field.name} must be of type {field.type}, got {value!r}") from None
