"""Documents, and the examples cut from them."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fedtern.core.errors import MissingDataError
from fedtern.data.text import Document, distinct_documents, python_documents, split_windows


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
