"""Functions that split a training set among clients.

The same labels and the same state of the random generator give the same split. Volume fractions
are the clients' shares of the data. They are rounded down to whole examples, so that a few examples
may belong to no client.
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
    """The training examples of each client. Only public examples belong to several clients.

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
        """The number of examples of each client."""
        return tuple(client.size for client in self.clients)

    def counts(self, labels: Labels, num_classes: int) -> NDArray[np.int64]:
        """Return the number of examples by client (row) and class (column)."""
        rows = [np.bincount(labels[client], minlength=num_classes) for client in self.clients]
        return np.array(rows, np.int64)


def volume_fractions(
    num_clients: int, gamma: float = 1.0, alpha: float = 0.1
) -> NDArray[np.float64]:
    """Return each client's share of the data, the largest first.

    phi_i = alpha / n + (1 - alpha) gamma^i / sum_j gamma^j for n clients.

    Args:
        num_clients: number of clients, n.
        gamma: concentration of the data on the first clients, in (0, 1]; 1 gives equal shares.
        alpha: the part of the data that is distributed evenly, in [0, 1]; every share is at least
            alpha / n.

    Raises:
        ValueError: an argument is out of range.

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
    """Give each client equal parts of neighbouring classes (Algorithm 5).

    Clients choose one after the other. A client gets exactly ``classes_per_client`` classes if
    enough examples are left in that many classes. Otherwise it gets as few more classes as
    possible. It gets fewer classes only if it has fewer examples than that, or if fewer classes
    are left. The number of examples is always exact.

    Args:
        labels: class numbers of the training set.
        fractions: share of each client, as of ``volume_fractions``.
        classes_per_client: number of classes of each client.
        rng: source of randomness.

    Raises:
        ValueError: an argument is out of range, or a client would get no examples.

    """
    pools = Pools.shuffled(labels, rng)
    if not 1 <= classes_per_client <= pools.num_classes:
        raise ValueError(
            f"classes_per_client must be between 1 and the number of classes, {pools.num_classes},"
            f" got {classes_per_client}"
        )
    budgets = _budgets(labels.size, fractions)
    return Split(
        tuple(pools.take(pools.neighbour_counts(n, classes_per_client, rng)) for n in budgets)
    )


def iid(labels: Labels, fractions: ArrayLike, rng: np.random.Generator) -> Split:
    """Give each client a random sample of all examples.

    Args:
        labels: class numbers of the training set.
        fractions: share of each client, as of ``volume_fractions``.
        rng: source of randomness.

    Raises:
        ValueError: the fractions are invalid, or a client would get no examples.

    """
    budgets = _budgets(labels.size, fractions)
    order = rng.permutation(labels.size).astype(np.int64)
    return Split(tuple(np.split(order, np.cumsum(budgets))[:-1]))


def dirichlet(
    labels: Labels, fractions: ArrayLike, alpha: float, rng: np.random.Generator
) -> Split:
    """Give each client a mixture of classes drawn from a Dirichlet distribution.

    Hsu et al. (2019): the mixture is Dir(alpha p), where p are the classes' shares of all
    examples. If no examples of a class are left, the other classes of the mixture replace it.

    Args:
        labels: class numbers of the training set.
        fractions: share of each client, as of ``volume_fractions``.
        alpha: concentration; a large value makes clients similar, a small value gives each client
            few classes.
        rng: source of randomness.

    Raises:
        ValueError: an argument is out of range, or a client would get no examples.

    """
    if not alpha > 0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    budgets = _budgets(labels.size, fractions)
    pools = Pools.shuffled(labels, rng)
    prior = pools.left / labels.size
    return Split(
        tuple(
            pools.take(pools.mixture_counts(n, rng.dirichlet(alpha * prior), rng)) for n in budgets
        )
    )


def by_group(groups: ArrayLike, num_clients: int | None, rng: np.random.Generator) -> Split:
    """Give each client all examples of one or several groups, such as speakers.

    Args:
        groups: group of each training example.
        num_clients: number of clients; each group, in random order, goes to the client with the
            fewest examples. None makes one client for each group, in the order of the groups.
        rng: source of randomness.

    Raises:
        ValueError: there are fewer groups than clients.

    """
    names, member = np.unique(np.asarray(groups), return_inverse=True)
    if num_clients is None:
        num_clients = names.size
        owner = np.arange(names.size)
    elif 1 <= num_clients <= names.size:
        owner = _assign_groups(np.bincount(member), num_clients, rng)
    else:
        raise ValueError(
            f"num_clients must be between 1 and the number of groups, {names.size}, got"
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
    """Give all clients access to a public part of the data (Zhao et al., 2018).

    Args:
        labels: class numbers of the training set.
        fraction: the part of the examples that is public, in (0, 1). It has the same number of
            examples of every class, as far as a class has enough.
        split: splits the remaining, private examples, given their labels.
        rng: source of randomness.
        portion: the part of the public examples that each client gets at random, in (0, 1].

    Raises:
        ValueError: an argument is out of range.

    >>> labels = np.arange(100) % 10
    >>> rng = np.random.default_rng(0)
    >>> four = volume_fractions(4)
    >>> with_public(labels, 0.2, lambda rest: by_class(rest, four, 1, rng), rng, portion=0.5).sizes
    (30, 30, 30, 30)
    """
    if not 0 < fraction < 1 or not 0 < portion <= 1:
        raise ValueError(
            f"fraction must be in (0, 1) and portion in (0, 1], got {fraction} and {portion}"
        )
    pools = Pools.shuffled(labels, rng)
    public = pools.take(pools.even_counts(_floor(labels.size * fraction)))
    private = np.setdiff1d(np.arange(labels.size), public)
    rest = split(labels[private])
    size = _floor(public.size * portion)
    clients = [
        np.concatenate([private[client], rng.choice(public, size, replace=False)])
        for client in rest.clients
    ]
    return Split(tuple(clients), public)


def _budgets(num_examples: int, fractions: ArrayLike) -> list[int]:
    """Return the number of examples of each client."""
    shares = np.asarray(fractions, np.float64)
    if shares.ndim != 1 or not shares.size or shares.min() < 0 or shares.sum() > 1 + 1e-9:
        raise ValueError(f"fractions must be positive and sum to at most 1, got {shares}")
    budgets = [_floor(num_examples * share) for share in shares.tolist()]
    if 0 in budgets:
        raise ValueError(
            f"client {budgets.index(0)} of {len(budgets)} would get none of the {num_examples}"
            " examples; use fewer clients or a larger gamma"
        )
    return budgets


def _floor(value: float) -> int:
    """Round down, but treat numbers just below an integer, by rounding errors, as that integer."""
    return int(np.floor(value * (1 + 1e-12)))


def _assign_groups(sizes: NDArray[np.int64], num_clients: int, rng: np.random.Generator) -> Indices:
    """Return the client of each group, given the groups' numbers of examples."""
    owner = np.empty(sizes.size, np.int64)
    client_sizes = np.zeros(num_clients, np.int64)
    for group in rng.permutation(sizes.size):
        owner[group] = client_sizes.argmin()
        client_sizes[owner[group]] += sizes[group]
    return owner
