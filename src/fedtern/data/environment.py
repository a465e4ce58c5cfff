"""The learning environment: clients, participation and split of the data (Table III)."""

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

# The options that apply to each split.
_SPLIT_OPTIONS = {
    "classes": ("classes_per_client", "gamma", "alpha"),
    "iid": ("gamma", "alpha"),
    "dirichlet": ("concentration", "gamma", "alpha"),
    "natural": (),
}
SPLITS = tuple(_SPLIT_OPTIONS)

# Independent streams of random numbers.
_SPLIT_STREAM = 0
_COHORT_STREAM = 1


@dataclass(frozen=True)
class Environment:
    """Clients, their participation and their data. The defaults are the paper's base configuration.

    Args:
        clients: number of clients.
        participation: the share of clients that train in each round, in (0, 1].
        classes_per_client: number of classes of each client (``split="classes"``, Algorithm 5).
            Data without classes are split like ``"iid"``.
        batch_size: number of examples in a local iteration.
        gamma: concentration of the data on the first clients, in (0, 1]; 1 gives equal shares.
        alpha: the part of the data that is distributed evenly for any gamma.
        split: "classes", "iid", "dirichlet" or "natural" (by the source of the examples).
        concentration: parameter of ``split="dirichlet"``; small values give clients few classes.
        public: the part of the data that all clients have, in [0, 1) (Zhao et al., 2018).

    Raises:
        ValueError: a value is out of range.

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
        # Environments with 1 and with 1.0 are the same and must have the same digest.
        for field in fields(self):
            object.__setattr__(self, field.name, _converted(field, getattr(self, field.name)))
        if self.clients < 1:
            raise ValueError(f"clients must be at least 1, got {self.clients}")
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation must be in (0, 1], got {self.participation}")
        if not self.cohort_size:
            raise ValueError(
                f"participation {self.participation} of {self.clients} clients selects no client;"
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
        """The number of clients that train in each round."""
        return round(self.clients * self.participation)

    def check_options_apply(self) -> Environment:
        """Raise if an option does not apply to this split; return self.

        Only commands call this. Recorded environments may have such options.

        Raises:
            ValueError: an option differs from its default, but the split does not use it.

        """
        names = dict.fromkeys(name for options in _SPLIT_OPTIONS.values() for name in options)
        for name in names:
            value = getattr(self, name)
            default = getattr(Environment, name)
            if name not in _SPLIT_OPTIONS[self.split] and value != default:
                splits = [
                    f'"{split}"' for split, options in _SPLIT_OPTIONS.items() if name in options
                ]
                raise ValueError(
                    f'{name} {value} does not apply to split "{self.split}"; leave it out, or use'
                    f" split {' or '.join(splits)}"
                )
        return self

    def cohort(self, seed: int, round: int) -> list[int]:
        """Return the clients that train in a round, in ascending order."""
        if self.cohort_size == self.clients:
            return list(range(self.clients))
        chosen = _rng(seed, _COHORT_STREAM, round).choice(
            self.clients, self.cohort_size, replace=False
        )
        return sorted(chosen.tolist())

    def split_dataset(self, dataset: Dataset, seed: int) -> Split:
        """Split a dataset's training examples among the clients.

        Raises:
            ValueError: there are more clients than examples, or the dataset does not support the
                split.

        """
        # Checked first: a huge number of clients would exhaust the memory.
        classes = dataset.classes
        if self.clients > classes.size:
            raise ValueError(
                f"some of {self.clients} clients would get none of the"
                f" {classes.size} examples; use fewer clients"
            )
        rng = _rng(seed, _SPLIT_STREAM)
        if not self.public:
            return self._split_labels(classes, dataset, rng)
        if self.split == "natural":
            raise ValueError(
                'public data cannot be combined with split "natural"; set public to 0 or choose'
                " another split"
            )
        split = partial(self._split_labels, dataset=dataset, rng=rng)
        return with_public(classes, self.public, split, rng)

    def _split_labels(self, labels: Labels, dataset: Dataset, rng: np.random.Generator) -> Split:
        fractions = volume_fractions(self.clients, self.gamma, self.alpha)
        if self.split == "iid":
            return iid(labels, fractions, rng)
        if self.split == "dirichlet":
            self._require_classes(dataset)
            return dirichlet(labels, fractions, self.concentration, rng)
        if self.split == "natural":
            if dataset.groups is None:
                raise ValueError(
                    f'split "natural" needs the groups of examples, but dataset {dataset.name!r}'
                    " has none; choose another split"
                )
            return by_group(dataset.groups, self.clients, rng)
        if (
            dataset.num_classes is None
            and self.classes_per_client == Environment.classes_per_client
        ):
            # The default, which gives every client a mixture of all classes.
            return iid(labels, fractions, rng)
        self._require_classes(dataset)
        return by_class(labels, fractions, self.classes_per_client, rng)

    def _require_classes(self, dataset: Dataset) -> None:
        if dataset.num_classes is None:
            raise ValueError(
                f"split {self.split!r} needs classes, but the targets of dataset {dataset.name!r}"
                ' are not classes; choose split "iid" or "natural", in Python'
                ' Environment(split="iid")'
            )


def _rng(seed: int, *stream: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=stream))


def _converted(field: Field[Any], value: Any) -> Any:
    """Return the value as the field's type."""
    types: dict[str, Callable[[Any], Any]] = {"int": operator.index, "float": float, "str": str}
    try:
        return types[str(field.type)](value)
    except (TypeError, ValueError):
        raise ValueError(f"{field.name} must be of type {field.type}, got {value!r}") from None
