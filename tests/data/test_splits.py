"""Properties of the functions that split a training set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedtern.data import (
    Split,
    by_class,
    by_group,
    dirichlet,
    iid,
    volume_fractions,
    with_public,
)

Array = NDArray[np.int64]


@st.composite
def environments(draw: st.DrawFn) -> tuple[Array, NDArray[np.float64], int, int]:
    """Draw labels, volume fractions (at least one example per client), classes per client, seed."""
    pools = draw(st.lists(st.integers(1, 60), min_size=2, max_size=10))
    labels = np.repeat(np.arange(len(pools)), pools)
    num_clients = draw(st.integers(1, max(1, labels.size // 2)))
    fractions = volume_fractions(num_clients, draw(st.sampled_from([1.0, 0.97, 0.9])), alpha=0.5)
    if np.floor(fractions.min() * labels.size) < 1:
        fractions = volume_fractions(num_clients)
    classes = draw(st.integers(1, len(pools)))
    seed = draw(st.integers(0, 2**32))
    return np.random.default_rng(seed).permutation(labels), fractions, classes, seed


def check(split: Split, fractions: NDArray[np.float64], size: int) -> None:
    """Check that clients are disjoint, inside the data, and as large as their fractions."""
    indices = np.concatenate(split.clients)
    assert np.unique(indices).size == indices.size
    assert indices.min() >= 0
    assert indices.max() < size
    np.testing.assert_allclose(split.sizes, fractions * size, atol=1)
    assert all(
        n <= fraction * size + 1e-6 for n, fraction in zip(split.sizes, fractions, strict=True)
    )


@given(environments())
def test_by_class_gives_disjoint_clients_of_the_requested_sizes(environment):
    labels, fractions, classes, seed = environment
    check(by_class(labels, fractions, classes, np.random.default_rng(seed)), fractions, labels.size)


@given(environments())
def test_iid_gives_disjoint_clients_of_the_requested_sizes(environment):
    labels, fractions, _, seed = environment
    check(iid(labels, fractions, np.random.default_rng(seed)), fractions, labels.size)


@given(environments(), st.sampled_from([1e-6, 0.01, 0.5, 100.0]))
def test_dirichlet_gives_disjoint_clients_of_the_requested_sizes(environment, alpha):
    labels, fractions, _, seed = environment
    split = dirichlet(labels, fractions, alpha, np.random.default_rng(seed))
    check(split, fractions, labels.size)


@given(environments())
def test_by_class_gives_the_requested_number_of_classes_if_enough_examples_are_left(environment):
    labels, fractions, classes, seed = environment
    split = by_class(labels, fractions, classes, np.random.default_rng(seed))
    counts = split.counts(labels, labels.max() + 1)
    left = np.bincount(labels)
    for size, held in zip(split.sizes, counts, strict=True):
        largest = np.sort(left)[::-1]
        fewest = int(np.searchsorted(np.cumsum(largest), size)) + 1
        most = min(int(np.count_nonzero(left)), size)
        assert np.count_nonzero(held) == max(fewest, min(classes, most))
        left -= held


@given(environments())
def test_equal_seeds_give_equal_splits(environment):
    labels, fractions, classes, seed = environment
    for split in (
        lambda rng: by_class(labels, fractions, classes, rng),
        lambda rng: iid(labels, fractions, rng),
        lambda rng: dirichlet(labels, fractions, 0.5, rng),
        lambda rng: by_group(labels, 1, rng),
    ):
        first = split(np.random.default_rng(seed))
        second = split(np.random.default_rng(seed))
        assert all(map(np.array_equal, first.clients, second.clients))


def test_a_split_is_the_same_in_every_version():
    labels = np.arange(60) % 5
    split = by_class(labels, volume_fractions(4), 2, np.random.default_rng(0))
    assert [client.tolist()[:3] for client in split.clients] == [
        [22, 27, 37],
        [45, 10, 35],
        [6, 16, 56],
        [30, 50, 40],
    ]


def test_a_client_has_equally_many_examples_of_each_of_its_classes():
    labels = np.repeat(np.arange(10), 600)
    split = by_class(labels, volume_fractions(10, gamma=0.9), 3, np.random.default_rng(1))
    first = split.counts(labels, 10)[0]
    held = first[first > 0]
    assert held.size == 3
    assert held.max() - held.min() <= 1


def test_by_class_gives_a_client_neighbouring_classes():
    labels = np.repeat(np.arange(10), 600)
    held = by_class(labels, [0.05], 4, np.random.default_rng(3)).counts(labels, 10)[0] > 0
    assert np.count_nonzero(held & ~np.roll(held, 1)) == 1


def test_by_class_gives_one_class_to_most_clients_of_unequal_classes():
    sizes = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # MNIST
    labels = np.repeat(np.arange(10), sizes)
    split = by_class(labels, volume_fractions(100), 1, np.random.default_rng(0))
    held = np.count_nonzero(split.counts(labels, 10), axis=1)
    assert set(split.sizes) == {600}
    assert np.count_nonzero(held == 1) == sum(size // 600 for size in sizes) == 94


def test_volume_fractions_follow_the_formula_and_sum_to_one():
    fractions = volume_fractions(100, gamma=0.9, alpha=0.1)
    powers = 0.9 ** np.arange(100)
    np.testing.assert_allclose(fractions, 0.1 / 100 + 0.9 * powers / powers.sum())
    assert fractions.sum() == pytest.approx(1)
    assert fractions.min() >= 0.001


def test_a_small_alpha_gives_dirichlet_clients_fewer_classes():
    labels = np.repeat(np.arange(10), 600)
    held = {
        alpha: np.count_nonzero(
            dirichlet(labels, volume_fractions(20), alpha, np.random.default_rng(0)).counts(
                labels, 10
            )
            > 15,
            axis=1,
        ).mean()
        for alpha in (0.1, 100.0)
    }
    assert held[0.1] < 3
    assert held[100.0] > 9


def test_by_group_without_a_number_of_clients_makes_one_client_per_group():
    groups = np.array([4, 1, 4, 9, 1, 4])
    split = by_group(groups, None, np.random.default_rng(0))
    assert [client.tolist() for client in split.clients] == [[1, 4], [0, 2, 5], [3]]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=200), st.integers(0, 1000))
def test_by_group_never_divides_a_group(groups, seed):
    num_clients = min(3, len(set(groups)))
    split = by_group(groups, num_clients, np.random.default_rng(seed))
    owners = [set(np.array(groups)[client]) for client in split.clients]
    assert sum(map(len, owners)) == len(set(groups))
    assert sum(split.sizes) == len(groups)
    assert min(split.sizes) > 0


@given(environments(), st.sampled_from([0.05, 0.3]), st.sampled_from([0.5, 1.0]))
def test_clients_share_only_public_examples(environment, fraction, portion):
    labels, _, _, seed = environment
    rng = np.random.default_rng(seed)
    one = volume_fractions(1)
    split = with_public(labels, fraction, lambda rest: iid(rest, one, rng), rng, portion)
    assert split.public.size == int(np.floor(labels.size * fraction + 1e-9))
    private = np.setdiff1d(split.clients[0], split.public)
    assert private.size == labels.size - split.public.size
    assert split.sizes[0] - private.size == int(np.floor(split.public.size * portion))


def test_the_public_examples_are_balanced_over_the_classes():
    labels = np.repeat(np.arange(3), [10, 40, 50])
    rng = np.random.default_rng(0)
    split = with_public(labels, 0.5, lambda rest: iid(rest, [0.5, 0.5], rng), rng)
    assert np.bincount(labels[split.public]).tolist() == [10, 20, 20]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda y, r: by_class(y, volume_fractions(5), 11, r),
            "classes_per_client .* 10, got 11",
        ),
        (lambda y, r: by_class(y, volume_fractions(5), 0, r), "classes_per_client .* got 0"),
        (
            lambda y, r: iid(y, volume_fractions(101), r),
            "client 0 of 101 would get none of the 100",
        ),
        (lambda y, r: iid(y, [0.6, 0.6], r), "sum to at most 1"),
        (lambda y, r: iid(y, [], r), "fractions"),
        (lambda y, r: dirichlet(y, [1.0], 0, r), "alpha must be positive, got 0"),
        (lambda y, r: by_group(y, 11, r), "number of groups, 10, got 11"),
        (lambda y, r: with_public(y, 1.0, lambda rest: iid(rest, [1.0], r), r), "fraction"),
        (lambda y, r: by_class(y[:0], [1.0], 1, r), "without examples"),
        (lambda y, r: volume_fractions(0), "num_clients must be at least 1, got 0"),
        (lambda y, r: volume_fractions(5, gamma=1.1), "gamma must be .* got 1.1"),
        (lambda y, r: volume_fractions(5, alpha=-1), "alpha must be .* got -1"),
    ],
)
def test_invalid_arguments_are_an_error_of_one_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call(np.arange(100) % 10, np.random.default_rng(0))
    assert "\n" not in str(error.value)
