"""Data as users have it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from fedtern.training.sources import load_data, read_source

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20) % 4


class Rows(TorchDataset):
    def __init__(self, x=X, y=Y):
        self.x = x
        self.y = y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Stream(IterableDataset):
    def __iter__(self):
        return zip(torch.from_numpy(X), Y.tolist(), strict=True)


TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X.tolist(), Y.tolist()],
        (torch.from_numpy(X), torch.from_numpy(Y)),
        TENSORS,
        Rows(),
        Stream(),
        DataLoader(TENSORS, batch_size=7, shuffle=True, drop_last=True),
        DataLoader(Stream(), batch_size=7),
    ],
)
def test_every_form_gives_the_same_examples_in_order(data):
    source = read_source(data, "data")
    assert np.array_equal(source.inputs, X)
    assert np.array_equal(source.targets, Y)
    assert source.batch_size == (7 if isinstance(data, DataLoader) else None)


def test_a_sampler_of_the_user_chooses_the_examples():
    loader = DataLoader(TENSORS, batch_size=2, sampler=SubsetRandomSampler([3, 5, 7]))
    assert sorted(read_source(loader, "data").targets.tolist()) == sorted(Y[[3, 5, 7]].tolist())


def test_every_tenth_example_is_held_out():
    loaded = load_data((X, Y))
    assert np.array_equal(loaded.dataset.test_inputs, X[9::10])
    assert len(loaded.dataset.train_labels) == 18
    assert loaded.dataset.num_classes == 4
    assert not loaded.dataset.standardise


@pytest.mark.parametrize("test", [(X[:5], Y[:5]), TENSORS, DataLoader(TENSORS, 3), [X, Y]])
def test_a_pair_of_training_and_test_data_is_taken_as_it_is(test):
    loaded = load_data((DataLoader(TENSORS, 6), test))
    assert len(loaded.dataset.train_labels) == 20
    assert len(loaded.dataset.test_labels) == len(read_source(test, "test"))
    assert loaded.batch_size == 6


def test_integers_stay_integers_and_float64_becomes_float32():
    tokens = np.arange(40, dtype=np.uint8).reshape(20, 2)
    assert load_data((tokens, tokens)).dataset.train_inputs.dtype == np.uint8
    assert load_data((X.astype(np.float64), Y)).dataset.train_inputs.dtype == np.float32
    assert load_data((torch.ones(20, 1, dtype=torch.bfloat16), Y)).dataset.train_inputs.all()


@pytest.mark.parametrize("targets", [Y * 0.5, Y - 1, Y * 1000, X])
def test_targets_that_are_no_class_numbers_have_no_classes(targets):
    assert load_data((X, targets)).dataset.num_classes is None


def test_client_data_is_the_split_with_the_batch_size_of_its_loaders():
    parts = [DataLoader(Rows(X[:6], Y[:6]), 5), (X[6:], Y[6:])]
    loaded = load_data((X[:3], Y[:3]), parts)
    assert loaded.split is not None
    assert [client.tolist() for client in loaded.split.clients] == [
        list(range(6)),
        list(range(6, 20)),
    ]
    assert loaded.batch_size == 5
    assert loaded.dataset.groups is not None
    assert loaded.dataset.groups.tolist() == [0] * 6 + [1] * 14
    assert len(loaded.dataset.test_labels) == 3


def test_test_examples_are_held_out_of_each_client():
    loaded = load_data(None, [(X, Y), (X[:10], Y[:10])])
    assert loaded.split is not None
    assert loaded.split.sizes == (18, 9)
    assert len(loaded.dataset.test_labels) == 3


@pytest.mark.parametrize(
    ("data", "clients", "message"),
    [
        (None, None, "a module needs data: a fedtern.data.Dataset, a pair of arrays"),
        (3, None, "data must be a pair of arrays .* got 3"),
        (X, None, r"data must be a pair of arrays .* got an array of shape \(20, 3\)"),
        ((X, Y[:5]), None, r"as many targets as inputs, got shapes \(20, 3\) and \(5,\)"),
        ((X[:5], Y[:5]), None, "5 examples are too few to hold out every tenth"),
        ((["a"] * 20, Y), None, "the inputs of data must be numbers, got an array of <U1"),
        (([[1], [1, 2]], Y), None, "the inputs of data must be an array"),
        (Rows([], []), None, "data has no examples"),
        (Rows([X[0], X[0, :2]], [0, 1]), None, r"example 0 has \(3,\) and example 1 has \(2,\)"),
        (DataLoader(TensorDataset(torch.ones(20, 1))), None, r"yield pairs \(inputs, targets\)"),
        (TensorDataset(torch.ones(20, 1)), None, r"pairs \(input, target\), but example 0"),
        (DataLoader(Rows([], [])), None, "data has no examples"),
        (None, [], r"client_data must be a list with the training data of each client, got \[\]"),
        (None, "abc", "client_data must be a list with the training data"),
        (((X, Y), (X, Y)), [(X, Y)], "data must be the test examples alone"),
        (
            (X, Y),
            [DataLoader(TENSORS, 4), DataLoader(TENSORS, 8)],
            "must have one batch size, got 4 and 8",
        ),
        ((X, Y), [(X, Y), (X[:, :2], Y)], r"client 0 has \(3,\) and client 1 has \(2,\)"),
        ((X, Y), [(X, Y), (X.astype(int), Y)], "must have one dtype, got float32 and int64"),
        ((X, Y), [(X, Y), (X[:0], Y[:0])], r"client_data\[1\] has no training examples"),
    ],
)
def test_data_of_another_form_is_an_error_that_names_it(data, clients, message):
    with pytest.raises(ValueError, match=message):
        load_data(data, clients)
