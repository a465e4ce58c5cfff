"""The binary formats that image datasets are published in."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import DataError

_UNSIGNED_BYTE = 8  # idx's code for uint8
_RECORD = 1 + 3 * 32 * 32  # a CIFAR-10 label and its red, green and blue planes


def read_idx(path: Path, ndim: int) -> NDArray[np.uint8]:
    """The array inside a gzipped idx file of unsigned bytes."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}; fetch it again") from None
    header = bytes([0, 0, _UNSIGNED_BYTE, ndim])
    if data[:4] != header:
        raise DataError(
            f"{path} must begin with {header.hex()}, an idx file of {ndim} dimensions, but begins"
            f" with {data[:4].hex()}"
        )
    start = 4 + 4 * ndim
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if len(data) != start + math.prod(shape):
        raise DataError(
            f"{path} must unpack to {start + math.prod(shape)} bytes for its shape {shape}, but"
            f" has {len(data)}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_idx_pair(folder: Path, prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images as (example, 1, row, column) and their labels, as MNIST names the two files."""
    images_path = folder / f"{prefix}-images-idx3-ubyte.gz"
    labels_path = folder / f"{prefix}-labels-idx1-ubyte.gz"
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path} must have one label for each of the {len(images)} images in"
            f" {images_path.name}, but has {len(labels)}"
        )
    check_labels(labels, labels_path, 10)
    return images[:, None], labels.astype(np.int64)


def read_cifar_batch(path: Path, sha256: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images as (example, channel, row, column) and labels of one binary batch.

    The format has no checksum of its own, so a batch as long as the published one must be it. A
    shorter or longer file is taken as a batch of the user's.
    """
    data = path.read_bytes()
    if not data or len(data) % _RECORD:
        raise DataError(f"{path} must be whole records of {_RECORD} bytes, but has {len(data)}")
    if len(data) == 10_000 * _RECORD:
        digest = hashlib.sha256(data).hexdigest()
        if digest != sha256:
            raise DataError(f"{path} must have SHA-256 {sha256}, but has {digest}; fetch it again")
    records = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
    check_labels(records[:, 0], path, 10)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def check_labels(labels: NDArray[Any], path: Path, num_classes: int) -> None:
    """Refuse a file with a label that no class has."""
    if labels.size and labels.max() >= num_classes:
        raise DataError(
            f"{path} must hold labels from 0 to {num_classes - 1}, but has {labels.max()}"
        )
