"""The sequence of a client's batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtern.training import Batches

sizes = st.integers(1, 50)


@given(sizes, sizes, st.integers(0, 2**64), st.integers(0, 200))
def test_an_epoch_contains_every_example_once(num_examples, batch_size, seed, epoch):
    indices = np.arange(100, 100 + num_examples)
    batches = Batches(indices, batch_size, seed, client=3)
    count = batches.per_epoch
    batches_seen = [batch for batch, _ in batches.take(epoch * count, count)]
    assert np.array_equal(np.sort(np.concatenate(batches_seen)), indices)
    assert all(batch.size == batch_size for batch in batches_seen[:-1])
    assert 1 <= batches_seen[-1].size <= batch_size


@given(sizes, sizes, st.lists(st.integers(0, 9), max_size=8))
def test_rounds_of_any_length_continue_the_same_sequence(num_examples, batch_size, rounds):
    indices = np.arange(num_examples)
    whole = list(Batches(indices, batch_size, seed=5, client=1).take(0, sum(rounds)))
    position = 0
    pieces = []
    for steps in rounds:
        pieces += Batches(indices, batch_size, seed=5, client=1).take(position, steps)
        position += steps
    for (expected, expected_rng), (batch, rng) in zip(whole, pieces, strict=True):
        assert np.array_equal(expected, batch)
        assert expected_rng().random() == rng().random()


def test_each_epoch_client_and_seed_has_its_own_order():
    indices = np.arange(50)
    orders = {
        tuple(next(iter(Batches(indices, 50, seed, client).take(epoch, 1)))[0].tolist())
        for seed in (0, 1)
        for client in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 8


def test_augmentation_and_order_use_independent_random_numbers():
    batches = Batches(np.arange(4), 4, seed=0, client=0)
    draws = [rng().random() for _, rng in batches.take(0, 100)]
    orders = [batches._rng(0, epoch).random() for epoch in range(100)]
    assert len({*draws, *orders}) == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.arange(3), 0, 0, 0), "batch_size must be at least 1, got 0"),
        ((np.arange(3), 1, -1, 0), "seed and client must not be negative, got -1 and 0"),
        ((np.arange(0), 1, 0, 9), "client 9 has no examples"),
    ],
)
def test_an_invalid_argument_is_an_error_that_names_it(arguments, message):
    with pytest.raises(ValueError, match=message):
        Batches(*arguments)
