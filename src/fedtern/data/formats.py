"""Readers for the binary formats of image datasets."""

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

_UNSIGNED_BYTE = 8  # code for uint8 in idx files
_RECORD = 1 + 3 * 32 * 32  # CIFAR-10: a label, then the red, green and blue planes


def read_idx(path: Path, ndim: int) -> NDArray[np.uint8]:
    """Read a gzipped idx file of unsigned bytes.

    Args:
        path: the file.
        ndim: the number of dimensions that the array must have.

    Raises:
        DataError: the file is damaged or has another type or number of dimensions.

    """
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}; download it again") from None
    header = bytes([0, 0, _UNSIGNED_BYTE, ndim])
    if data[:4] != header:
        raise DataError(
            f"{path} is not an idx file of {ndim} dimensions: it must begin with {header.hex()},"
            f" but begins with {data[:4].hex()}"
        )
    start = 4 + 4 * ndim
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if len(data) != start + math.prod(shape):
        raise DataError(
            f"{path} must have {start + math.prod(shape)} bytes (unpacked) for its shape {shape},"
            f" but has {len(data)}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_idx_pair(folder: Path, prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read images and labels from two idx files with the names that MNIST uses.

    Args:
        folder: the folder with the files.
        prefix: "train" or "t10k".

    Returns:
        Images with the axes (example, 1, row, column), and their labels.

    Raises:
        DataError: a file is damaged, or the two files do not match.

    """
    images_path = folder / f"{prefix}-images-idx3-ubyte.gz"
    labels_path = folder / f"{prefix}-labels-idx1-ubyte.gz"
    images = read_idx(images_path, 3)
    labels = read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path} must have one label for each of the {len(images)} images in"
            f" {images_path.name}, but has {len(labels)}"
        )
    check_labels(labels, labels_path, 10)
    return images[:, None], labels.astype(np.int64)


def read_cifar_batch(path: Path, sha256: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read one binary batch of CIFAR-10.

    Args:
        path: the file.
        sha256: digest of the published batch. The format has no checksum, so a file of the
            published length must have this digest; files of other lengths are not checked.

    Returns:
        Images with the axes (example, channel, row, column), and their labels.

    Raises:
        DataError: the file is damaged.

    """
    data = path.read_bytes()
    if not data or len(data) % _RECORD:
        raise DataError(f"{path} must have records of {_RECORD} bytes, but has {len(data)} bytes")
    if len(data) == 10_000 * _RECORD:
        digest = hashlib.sha256(data).hexdigest()
        if digest != sha256:
            raise DataError(
                f"{path} must have SHA-256 {sha256}, but has {digest}; download it again"
            )
    records = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
    check_labels(records[:, 0], path, 10)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def check_labels(labels: NDArray[Any], path: Path, num_classes: int) -> None:
    """Check that labels are smaller than the number of classes.

    Raises:
        DataError: a label is too large; the message names the file.

    """
    if labels.size and labels.max() >= num_classes:
        raise DataError(
            f"{path} must hold labels from 0 to {num_classes - 1}, but has {labels.max()}"
        )
