"""Ways to deal a training set out to clients.

Every function is pure: the same labels and random generator give the same split. Volume fractions
say how much each client holds; the examples left over by rounding down belong to no one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtern.data.dataset import Labels
from fedtern.data.pools import Pools

Indices = NDArray[np.int64]
"""Positions in the training set, in no particular order."""


@dataclass(frozen=True, eq=False)
class Split:
    """The training examples that each client holds; no two hold the same one, unless public.

    >>> split = Split((np.array([0, 3]), np.array([2])))
    >>> len(split), split.sizes, split.counts(np.array([0, 0, 1, 1]), num_classes=2).tolist()
    (2, (2, 1), [[1, 1], [0, 1]])
    """

    clients: tuple[Indices, ...]
    public: Indices = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many examples each client holds."""
        return tuple(client.size for client in self.clients)

    def counts(self, labels: Labels, num_classes: int) -> NDArray[np.int64]:
        """How many examples of each class (column) each client (row) holds."""
        rows = [np.bincount(labels[client], minlength=num_classes) for client in self.clients]
        return np.array(rows, np.int64)


def volume_fractions(
    num_clients: int, gamma: float = 1.0, alpha: float = 0.1
) -> NDArray[np.float64]:
    """Each client's share of the data, the largest first.

    phi_i = alpha / n + (1 - alpha) gamma^i / sum_j gamma^j: all equal for gamma = 1, and at least
    alpha / n however steep gamma makes it.

    >>> volume_fractions(3, gamma=0.5).round(3).tolist()
    [0.548, 0.29, 0.162]
    """
    if num_clients < 1:
        raise ValueError(f"num_clients must be at least 1, got {num_clients}")
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma must be in (0, 1], got {gamma}")
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}")
    powers = np.power(gamma, np.arange(num_clients, dtype=np.float64))
    fractions: NDArray[np.float64] = alpha / num_clients + (1 - alpha) * powers / powers.sum()
    return fractions


def by_class(
    labels: Labels, fractions: ArrayLike, classes_per_client: int, rng: np.random.Generator
) -> Split:
    """Algorithm 5: a client's share comes in equal parts from neighbouring classes.

    While pools last, a client holds exactly ``classes_per_client`` classes. When at its turn no
    such number of classes has enough left, it holds as few more as possible; a client with fewer
    examples than that, or one that comes when fewer classes are left, holds fewer. Its size is
    exact in every case.
    """
    pools = Pools.shuffled(labels, rng)
    if not 1 <= classes_per_client <= pools.num_classes:
        raise ValueError(
            f"classes_per_client must be between 1 and the {pools.num_classes} classes there are,"
            f" got {classes_per_client}"
        )
    budgets = _budgets(labels.size, fractions)
    return Split(tuple(pools.take(pools.plan(n, classes_per_client, rng)) for n in budgets))


def iid(labels: Labels, fractions: ArrayLike, rng: np.random.Generator) -> Split:
    """Every client's share is drawn at random from all examples."""
    budgets = _budgets(labels.size, fractions)
    order = rng.permutation(labels.size).astype(np.int64)
    return Split(tuple(np.split(order, np.cumsum(budgets))[:-1]))


def dirichlet(
    labels: Labels, fractions: ArrayLike, alpha: float, rng: np.random.Generator
) -> Split:
    """Every client has its own mixture of classes, drawn from a Dirichlet distribution.

    Hsu et al. (2019): the mixture is Dir(alpha p), with p the classes' shares of all examples;
    a large alpha makes clients alike, a small one leaves each with few classes. Where a class has
    run out, the others of the client's mixture take its place.
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    budgets = _budgets(labels.size, fractions)
    pools = Pools.shuffled(labels, rng)
    prior = pools.left / labels.size
    return Split(
        tuple(pools.take(pools.draw(n, rng.dirichlet(alpha * prior), rng)) for n in budgets)
    )


def by_group(groups: ArrayLike, num_clients: int | None, rng: np.random.Generator) -> Split:
    """Every client holds all examples of one group, such as a speaker, or of several.

    Without a number of clients there is one for each group, in the order of the groups' names.
    With one, groups in random order go to whichever client holds the least.
    """
    names, member = np.unique(np.asarray(groups), return_inverse=True)
    if num_clients is None:
        num_clients, owner = names.size, np.arange(names.size)
    elif 1 <= num_clients <= names.size:
        owner = _deal(np.bincount(member), num_clients, rng)
    else:
        raise ValueError(
            f"num_clients must be between 1 and the {names.size} groups there are, got"
            f" {num_clients}"
        )
    client = owner[member]
    order = np.argsort(client, kind="stable").astype(np.int64)
    return Split(tuple(np.split(order, np.cumsum(np.bincount(client, minlength=num_clients))[:-1])))


def with_public(
    labels: Labels,
    fraction: float,
    split: Callable[[Labels], Split],
    rng: np.random.Generator,
    portion: float = 1.0,
) -> Split:
    """Every client also holds a part of a public subset (data sharing, Zhao et al., 2018).

    ``fraction`` of all examples becomes public, the same number from every class where each has
    enough; ``split`` deals out the rest; each client adds a random ``portion`` of what is public.

    >>> labels, rng = np.arange(100) % 10, np.random.default_rng(0)
    >>> four = volume_fractions(4)
    >>> with_public(labels, 0.2, lambda rest: by_class(rest, four, 1, rng), rng, portion=0.5).sizes
    (30, 30, 30, 30)
    """
    if not 0 < fraction < 1 or not 0 < portion <= 1:
        raise ValueError(
            f"fraction must be in (0, 1) and portion in (0, 1], got {fraction} and {portion}"
        )
    pools = Pools.shuffled(labels, rng)
    public = pools.take(pools.even(_floor(labels.size * fraction)))
    private = np.setdiff1d(np.arange(labels.size), public)
    rest = split(labels[private])
    size = _floor(public.size * portion)
    clients = [
        np.concatenate([private[client], rng.choice(public, size, replace=False)])
        for client in rest.clients
    ]
    return Split(tuple(clients), public)


def _budgets(num_examples: int, fractions: ArrayLike) -> list[int]:
    shares = np.asarray(fractions, np.float64)
    if shares.ndim != 1 or not shares.size or shares.min() < 0 or shares.sum() > 1 + 1e-9:
        raise ValueError(f"fractions must be positive and sum to at most 1, got {shares}")
    budgets = [_floor(num_examples * share) for share in shares.tolist()]
    if 0 in budgets:
        raise ValueError(
            f"client {budgets.index(0)} of {len(budgets)} would hold none of the {num_examples}"
            " examples: use fewer clients or a larger gamma"
        )
    return budgets


def _floor(value: float) -> int:
    """Round down, except what falls short of a whole number by rounding errors alone."""
    return int(np.floor(value * (1 + 1e-12)))


def _deal(sizes: NDArray[np.int64], num_clients: int, rng: np.random.Generator) -> Indices:
    """The client that gets each group."""
    owner, held = np.empty(sizes.size, np.int64), np.zeros(num_clients, np.int64)
    for group in rng.permutation(sizes.size):
        owner[group] = held.argmin()
        held[owner[group]] += sizes[group]
    return owner
