"""Readers of published files, and of damaged ones."""

from __future__ import annotations

import contextlib
import gzip
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtern.core.errors import DataError
from fedtern.data.formats import read_cifar_batch, read_idx, read_idx_pair


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_pair(folder, images, labels, prefix="train"):
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        data = gzip.compress(idx(np.asarray(array, np.uint8)))
        (folder / f"{prefix}-{kind}-ubyte.gz").write_bytes(data)


def test_read_idx_returns_the_array_that_was_written(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(idx(array)))
    assert np.array_equal(read_idx(path, 3), array)


def test_an_idx_pair_has_a_channel_axis_and_int64_labels(tmp_path):
    write_pair(tmp_path, np.zeros((2, 28, 28)), [3, 9])
    images, labels = read_idx_pair(tmp_path, "train")
    assert images.shape == (2, 1, 28, 28)
    assert labels.dtype == np.int64
    assert labels.tolist() == [3, 9]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not gzip at all", "not a complete gzip file"),
        (gzip.compress(idx(np.zeros((2, 2, 2), np.uint8)))[:-3], "not a complete gzip file"),
        (
            gzip.compress(b"\0\0\x0d\x03" + bytes(12)),
            "begin with 00000803, but begins with 00000d03",
        ),
        (gzip.compress(idx(np.zeros((2, 2, 2), np.uint8)) + b"x"), "24 bytes .* but has 25"),
        (gzip.compress(idx(np.zeros((2, 2, 2), np.uint8))[:-1]), "24 bytes .* but has 23"),
        (gzip.compress(b""), "begin with 00000803"),
    ],
    ids=["not gzip", "truncated gzip", "wrong type", "too long", "too short", "empty"],
)
def test_a_damaged_idx_file_is_an_error_that_names_it(tmp_path, data, message):
    path = tmp_path / "broken.gz"
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"(?s)broken.gz.*{message}"):
        read_idx(path, 3)


@given(st.data())
def test_a_flipped_bit_in_a_gzipped_file_is_an_error_or_changes_nothing(tmp_path_factory, data):
    array = np.arange(64, dtype=np.uint8).reshape(4, 4, 4)
    raw = bytearray(gzip.compress(idx(array), mtime=0))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    path = tmp_path_factory.getbasetemp() / "flipped.gz"
    path.write_bytes(raw)
    with contextlib.suppress(DataError):
        assert np.array_equal(read_idx(path, 3), array)


def test_different_numbers_of_labels_and_images_are_an_error(tmp_path):
    write_pair(tmp_path, np.zeros((2, 28, 28)), [1, 2, 3])
    with pytest.raises(DataError, match=r"one label for each of the 2 images .* has 3"):
        read_idx_pair(tmp_path, "train")


def test_a_label_beyond_the_number_of_classes_is_an_error(tmp_path):
    write_pair(tmp_path, np.zeros((1, 28, 28)), [10])
    with pytest.raises(DataError, match=r"labels-idx1-ubyte\.gz must hold labels from 0 to 9"):
        read_idx_pair(tmp_path, "train")


def test_a_cifar_record_is_a_label_then_red_green_and_blue(tmp_path):
    path = tmp_path / "batch.bin"
    path.write_bytes(bytes([7]) + bytes([1] * 1024 + [2] * 1024 + [3] * 1024))
    images, labels = read_cifar_batch(path, "")
    assert labels.tolist() == [7]
    assert [int(plane[0, 0]) for plane in images[0]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "records of 3073 bytes, but has 0 bytes"),
        (bytes(3072), "records of 3073 bytes, but has 3072 bytes"),
        (bytes([11]) + bytes(3072), "labels from 0 to 9, but has 11"),
        (bytes(10_000 * 3073), "SHA-256 beef, but has [0-9a-f]{64}"),
    ],
)
def test_a_damaged_cifar_batch_is_an_error_that_names_it(tmp_path, data, message):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"data_batch_1.bin must .*{message}"):
        read_cifar_batch(path, "beef")
