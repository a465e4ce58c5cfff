"""Batches of a dataset as a model receives them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtern.data import Dataset, load
from fedtern.training import Batches, CropFlip, Examples, pad


@pytest.fixture
def images():
    inputs = np.random.default_rng(0).integers(0, 256, (10, 3, 6, 6), np.uint8)
    labels = np.arange(10) % 2
    return Dataset(
        "noise", inputs, labels, inputs[:4], labels[:4], num_classes=2,
        scale=255, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7),
    )  # fmt: skip


def generator(seed=0):
    return lambda: np.random.default_rng(seed)


def test_a_batch_is_standardised_like_the_dataset_says(images):
    inputs, labels = Examples.train(images).batch(np.array([7, 2]))
    np.testing.assert_allclose(inputs, images.normalise(images.train_inputs[[7, 2]]), atol=1e-6)
    assert labels.tolist() == [1, 0]
    assert inputs.dtype == torch.float32
    assert labels.dtype == torch.int64


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_chunks_contain_all_examples_in_order(images, size):
    examples = Examples.test(images)
    inputs, labels = (torch.cat(parts) for parts in zip(*examples.chunks(size), strict=True))
    np.testing.assert_allclose(inputs, images.normalise(images.test_inputs), atol=1e-6)
    assert torch.equal(labels, examples.labels)
    assert len(examples) == 4


def test_rows_of_numbers_need_no_channels():
    rows = np.float32([[1, 2], [3, 4]])
    table = Dataset("table", rows, [0, 1], rows, [0, 1], num_classes=2)
    assert Examples.train(table).batch(np.array([1]))[0].tolist() == [[3, 4]]


def test_crop_flip_gives_a_window_of_the_padded_image_or_its_mirror_image():
    inputs = torch.as_tensor(np.random.default_rng(1).integers(1, 256, (40, 3, 6, 6), np.uint8))
    changed = CropFlip(2)(inputs, np.random.default_rng(0))
    padded = torch.nn.functional.pad(inputs, [2] * 4)
    kinds = set()
    for image, result in zip(padded, changed, strict=True):
        windows = {
            (down, right, mirrored): window.flip(-1) if mirrored else window
            for down in range(5)
            for right in range(5)
            for mirrored in (False, True)
            for window in [image[:, down : down + 6, right : right + 6]]
        }
        kinds |= {kind for kind, window in windows.items() if torch.equal(window, result)}
    assert {mirrored for _, _, mirrored in kinds} == {False, True}
    assert {down for down, _, _ in kinds} == {right for _, right, _ in kinds} == set(range(5))
    assert changed.dtype == torch.uint8


def test_crop_flip_without_margin_only_mirrors():
    inputs = torch.arange(4, dtype=torch.uint8).reshape(1, 1, 2, 2)
    results = {
        tuple(CropFlip(0)(inputs, np.random.default_rng(seed)).flatten().tolist())
        for seed in range(20)
    }
    assert results == {(0, 1, 2, 3), (1, 0, 3, 2)}


def test_augmentation_depends_only_on_the_seed(images):
    examples = Examples.train(images, augment=CropFlip())
    batches = Batches(np.arange(10), 5, seed=0, client=0)
    first, second = ([examples.batch(*batch)[0] for batch in batches.take(0, 4)] for _ in range(2))
    assert all(map(torch.equal, first, second))
    plain = [Examples.train(images).batch(*batch)[0] for batch in batches.take(0, 4)]
    assert not any(map(torch.equal, first, plain))


def test_a_batch_without_a_generator_is_not_augmented(images):
    augmented = Examples.train(images, augment=CropFlip()).batch(np.arange(10))[0]
    assert torch.equal(augmented, Examples.train(images).batch(np.arange(10), generator())[0])


def test_padding_is_zero_before_standardising(images):
    inputs = Examples.test(images, transform=pad(8)).batch(np.array([0]))[0]
    assert inputs.shape == (1, 3, 8, 8)
    zero = images.normalise(np.zeros((1, 3, 1, 1)))
    np.testing.assert_allclose(inputs[:, :, :1, :1], zero, atol=1e-6)
    np.testing.assert_allclose(
        inputs[0, :, 1:7, 1:7], images.normalise(images.test_inputs[:1])[0], atol=1e-6
    )


def test_changing_a_batch_does_not_change_the_dataset():
    data = load("digits")
    before = data.train_inputs.copy()
    inputs, _ = Examples.train(data).batch(np.arange(5))
    inputs += 1
    assert np.array_equal(data.train_inputs, before)


def test_a_negative_margin_is_an_error():
    with pytest.raises(ValueError, match="margin must not be negative, got -1"):
        CropFlip(-1)


def test_an_augmentation_may_change_the_size_of_images(images):
    examples = Examples.train(images, augment=lambda inputs, rng: inputs[..., 1:, 1:])
    inputs, _ = examples.batch(np.arange(3), lambda: np.random.default_rng(0))
    whole, _ = Examples.train(images).batch(np.arange(3))
    assert torch.equal(inputs, whole[..., 1:, 1:])


def test_inputs_that_are_not_standardised_keep_their_values_and_integers():
    tokens = np.arange(12, dtype=np.uint8).reshape(4, 3)
    data = Dataset("text", tokens, tokens, tokens[:1], tokens[:1], None, standardise=False)
    inputs, targets = Examples.train(data).batch(np.array([2, 0]))
    assert inputs.tolist() == targets.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert inputs.dtype == targets.dtype == torch.int64
    numbers = tokens.astype(np.float64)
    floats = Dataset("numbers", numbers, numbers, numbers, numbers, None, standardise=False)
    assert Examples.test(floats).batch(np.array([1]))[0].dtype == torch.float64
