"""Documents, and the examples cut from them."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fedtern.core.errors import MissingDataError
from fedtern.data import load
from fedtern.data.environment import Environment
from fedtern.data.text import (
    Document,
    distinct_documents,
    python_documents,
    python_sources,
    split_windows,
)


def test_python_has_enough_documents_for_a_federation():
    documents = python_documents()
    assert len(documents) >= 40
    assert [d.name for d in documents] == sorted(d.name for d in documents)
    assert sum(len(d.text) for d in documents) > 300_000
    assert min(len(d.text) for d in documents) >= 1000


def test_no_paragraph_is_in_two_documents():
    paragraphs = [
        " ".join(p.split()) for d in python_documents() for p in d.text.decode().split("\n\n")
    ]
    assert len(paragraphs) == len(set(paragraphs))


def test_a_shared_paragraph_stays_in_the_shortest_document():
    texts = {"a": "one\n\ntwo\n\nthree", "b": "two", "c": "one\n\n  two"}
    found = {d.name: d.text for d in distinct_documents(texts, minimum=1)}
    assert found == {"a": b"three", "b": b"two", "c": b"one"}


def test_documents_that_are_too_short_are_dropped():
    assert distinct_documents({"a": "12345", "b": "1234567"}, minimum=6) == (
        Document("b", b"1234567"),
    )


def test_targets_are_the_bytes_after_the_inputs():
    train, test = split_windows([Document("d", bytes(range(41)))], context=4)
    assert train.inputs.shape == (9, 4)
    assert train.inputs[1].tolist() == [4, 5, 6, 7]
    assert train.targets[1].tolist() == [5, 6, 7, 8]
    assert test.inputs.tolist() == [[36, 37, 38, 39]]
    assert test.targets.tolist() == [[37, 38, 39, 40]]
    assert train.targets.dtype == np.int64


def test_test_examples_are_the_last_tenth_of_each_document_and_at_least_one():
    documents = [Document("long", bytes(101)), Document("short", bytes(9))]
    train, test = split_windows(documents, context=4)
    assert np.bincount(train.documents).tolist() == [22, 1]
    assert np.bincount(test.documents).tolist() == [3, 1]


def test_a_document_with_less_than_two_examples_is_an_error():
    with pytest.raises(ValueError, match="'tiny' has 8 bytes, but needs more than 8"):
        split_windows([Document("tiny", bytes(8))], context=4)


def test_a_python_without_documentation_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(MissingDataError, match=r"no pydoc_data\.topics; install the full standard"):
        python_documents()


def test_a_natural_split_gives_each_client_one_document():
    data = load("python-topics")
    documents = len(python_documents())
    environment = Environment(clients=documents, split="natural")
    split = environment.split_dataset(data, seed=0)
    owners = [set(data.groups[indices].tolist()) for indices in split.clients]
    assert all(len(groups) == 1 for groups in owners)
    assert set().union(*owners) == set(range(documents))


def test_more_clients_than_documents_are_an_error_with_the_number_of_documents():
    environment = Environment(clients=1000, split="natural")
    with pytest.raises(ValueError, match=r"between 1 and the number of groups, \d+, got 1000"):
        environment.split_dataset(load("python-topics"), seed=0)


def test_less_than_one_test_example_in_a_hundred_is_also_a_training_example():
    data = load("python-topics")
    train = {row.tobytes() for row in data.train_inputs}
    copies = [row for row in data.test_inputs if row.tobytes() in train]
    assert len(copies) < len(data.test_inputs) / 100


def test_sources_of_modules_are_not_documents():
    names = {document.name for document in python_sources()}
    assert len(names) == 10
    assert not names & {document.name for document in python_documents()}
    assert sum(len(document.text) for document in python_sources()) > 500_000
