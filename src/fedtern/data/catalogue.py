"""Every dataset there is, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedtern.core.names import look_up
from fedtern.data.dataset import Dataset
from fedtern.data.images import cifar10, digits, fashion_mnist, mnist
from fedtern.data.speech import speech_commands

DATASETS: dict[str, Callable[[str | Path | None], Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "speech-commands": speech_commands,
}


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """The dataset of this name, read from ``data_dir``, ``FEDTERN_DATA`` or the user's cache."""
    return look_up(name, DATASETS, "dataset")(data_dir)
