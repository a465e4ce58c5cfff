"""The built-in datasets by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedtern.core.names import look_up
from fedtern.data.dataset import Dataset
from fedtern.data.images import cifar10, digits, fashion_mnist, mnist
from fedtern.data.speech import speech_commands
from fedtern.data.tables import diabetes
from fedtern.data.text import python_topics

DATASETS: dict[str, Callable[[str | Path | None], Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "speech-commands": speech_commands,
    "python-topics": python_topics,
    "diabetes": diabetes,
}


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Load a built-in dataset.

    Args:
        name: a key of ``DATASETS``.
        data_dir: the data directory; by default ``$FEDTERN_DATA``, else the user's cache directory,
            into which missing files are downloaded.

    Raises:
        ValueError: no dataset has this name.
        MissingDataError: a file is missing and cannot be downloaded.
        DataError: a file is damaged.
        MissingExtraError: a library that the dataset needs is not installed.

    """
    return look_up(name, DATASETS, "dataset")(data_dir)
