"""Python's documentation by topic, as bytes: a text that every CPython has.

The documents are the topics of ``help()``, which the standard library keeps in ``pydoc_data``.
Another version of Python has other documents, so numbers are comparable only between runs of the
same version.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import MissingDataError
from fedtern.data.dataset import Dataset

CONTEXT = 64
"""Number of bytes in an example."""

_MODULES = (
    "argparse", "configparser", "difflib", "inspect", "optparse", "pickle", "subprocess", "tarfile",
    "threading", "typing",
)  # fmt: skip
_MINIMUM_BYTES = 1000  # a shorter document has too few examples for a client
_TEST_SHARE = 10  # one example in ten is for testing


@dataclass(frozen=True)
class Document:
    """The text of one topic."""

    name: str
    text: bytes


@dataclass(frozen=True, eq=False)
class Windows:
    """Consecutive parts of documents, each with the bytes that follow.

    Attributes:
        inputs: bytes (example, position).
        targets: the byte after each position (example, position).
        documents: number of the document of each example.

    """

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    documents: NDArray[np.int64]


def python_documents() -> tuple[Document, ...]:
    """Return the topics of Python's documentation, ordered by name.

    Topics overlap: "compound" has the text of "if", "while" and others. A paragraph stays only in
    the shortest topic that has it, so that no test example is a copy of a training example. Topics
    with less than 1,000 bytes left are dropped.

    Raises:
        MissingDataError: this Python was installed without its documentation.

    """
    try:
        topics: Mapping[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise MissingDataError(
            "this Python has no pydoc_data.topics; install the full standard library"
        ) from error
    return distinct_documents(topics, _MINIMUM_BYTES)


def python_sources() -> tuple[Document, ...]:
    """Return the source of some modules of the standard library, for a pretrained model.

    Raises:
        MissingDataError: this Python was installed without the sources of its modules.

    """
    try:
        return tuple(
            Document(name, inspect.getsource(importlib.import_module(name)).encode())
            for name in _MODULES
        )
    except OSError as error:
        raise MissingDataError(
            f"this Python has no sources of its modules ({error}); install the full standard"
            " library"
        ) from error


def distinct_documents(texts: Mapping[str, str], minimum: int) -> tuple[Document, ...]:
    """Return texts without the paragraphs that a shorter text has, ordered by name.

    Args:
        texts: texts by name; empty lines separate paragraphs.
        minimum: drop documents with fewer bytes.

    >>> texts = {"long": "if: a{0}else: b{0}for: c".format(chr(10) * 2), "if": "if:  a"}
    >>> [(document.name, len(document.text)) for document in distinct_documents(texts, minimum=1)]
    [('if', 6), ('long', 15)]
    """
    seen: set[str] = set()
    documents = []
    for name in sorted(texts, key=lambda name: (len(texts[name]), name)):
        kept = []
        for paragraph in texts[name].split("\n\n"):
            words = " ".join(paragraph.split())  # copies may be indented differently
            if words and words not in seen:
                seen.add(words)
                kept.append(paragraph)
        documents.append(Document(name, "\n\n".join(kept).encode()))
    return tuple(
        sorted(
            (document for document in documents if len(document.text) >= minimum),
            key=lambda document: document.name,
        )
    )


def split_windows(documents: Sequence[Document], context: int = CONTEXT) -> tuple[Windows, Windows]:
    """Cut documents into examples for training and for testing.

    The last tenth of each document's examples, at least one, is for testing. The bytes after the
    last complete example are dropped.

    Args:
        documents: the documents; each has more than ``2 * context`` bytes.
        context: number of bytes in an example.

    Raises:
        ValueError: a document is too short.

    """
    rows = [_rows(document, context) for document in documents]
    ends = [len(cut) - -(-len(cut) // _TEST_SHARE) for cut in rows]
    train = [cut[:end] for cut, end in zip(rows, ends, strict=True)]
    test = [cut[end:] for cut, end in zip(rows, ends, strict=True)]
    return _windows(train), _windows(test)


def _rows(document: Document, context: int) -> NDArray[np.uint8]:
    """Return the examples of a document; each row ends with the first byte of the next one."""
    count = (len(document.text) - 1) // context
    if count < 2:
        raise ValueError(
            f"document {document.name!r} has {len(document.text)} bytes, but needs more than"
            f" {2 * context}"
        )
    values = np.frombuffer(document.text, np.uint8)
    return np.lib.stride_tricks.sliding_window_view(values, context + 1)[::context][:count]


def _windows(parts: Sequence[NDArray[np.uint8]]) -> Windows:
    """Return the examples of several documents, with one part of each."""
    rows = np.concatenate(parts).astype(np.int64)
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return Windows(rows[:, :-1], rows[:, 1:], numbers)


def python_topics(data_dir: str | Path | None = None) -> Dataset:
    """Load the documents of this Python, in examples of 64 bytes; targets are the next bytes.

    Groups are the documents. The text is part of Python, so ``data_dir`` is ignored.
    """
    train, test = split_windows(python_documents())
    return Dataset(
        "python-topics", train.inputs, train.targets, test.inputs, test.targets, num_classes=None,
        groups=train.documents, standardise=False,
    )  # fmt: skip
