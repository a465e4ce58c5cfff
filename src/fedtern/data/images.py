"""The image datasets: digits, MNIST, Fashion-MNIST and CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedtern.core.extras import require
from fedtern.data.dataset import Dataset
from fedtern.data.files import Download, Source, download_each, download_members
from fedtern.data.formats import read_cifar_batch, read_idx_pair

_NUM_TEST_DIGITS = 297


def digits(data_dir: str | Path | None = None) -> Dataset:
    """Load scikit-learn's digits: 1,500 + 297 handwritten digits of 8 by 8 pixels.

    They are part of scikit-learn, so ``data_dir`` is ignored. The test examples are the first 297
    of ``numpy.random.default_rng(0).permutation(1797)``.
    """
    sklearn = require("sklearn.datasets", "torch", "the digits dataset")
    bunch = sklearn.load_digits()
    inputs = bunch.images.astype(np.uint8)[:, None]
    labels = bunch.target
    order = np.random.default_rng(0).permutation(len(labels))
    test = order[:_NUM_TEST_DIGITS]
    train = order[_NUM_TEST_DIGITS:]
    return Dataset(
        "digits", inputs[train], labels[train], inputs[test], labels[test], num_classes=10,
        scale=16, mean=(0.3047,), std=(0.3757,),
    )  # fmt: skip


def mnist(data_dir: str | Path | None = None) -> Dataset:
    """Load MNIST: 60,000 + 10,000 handwritten digits of 28 by 28 pixels (LeCun et al., 1998)."""
    return _idx_dataset("mnist", _MNIST.locate(data_dir), mean=0.1307, std=0.3081)


def fashion_mnist(data_dir: str | Path | None = None) -> Dataset:
    """Load Fashion-MNIST: 60,000 + 10,000 garments of 28 by 28 pixels (Xiao et al., 2017)."""
    return _idx_dataset("fashion-mnist", _FASHION.locate(data_dir), mean=0.2860, std=0.3530)


def cifar10(data_dir: str | Path | None = None) -> Dataset:
    """Load CIFAR-10: 50,000 + 10,000 colour photographs of 32 by 32 pixels (Krizhevsky, 2009).

    Mean and standard deviation are the constants of the paper's published code.
    """
    folder = _CIFAR.locate(data_dir)
    batches = [read_cifar_batch(folder / name, sha256) for name, sha256 in _BATCHES.items()]
    inputs, labels = zip(*batches[:-1], strict=True)
    return Dataset(
        "cifar10", np.concatenate(inputs), np.concatenate(labels), *batches[-1], num_classes=10,
        scale=255, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010),
    )  # fmt: skip


def _idx_dataset(name: str, folder: Path, *, mean: float, std: float) -> Dataset:
    train = read_idx_pair(folder, "train")
    test = read_idx_pair(folder, "t10k")
    return Dataset(name, *train, *test, num_classes=10, scale=255, mean=(mean,), std=(std,))


def _idx_source(folder: str, url: str, **sha256: str) -> Source:
    suffixes = {"images": "images-idx3-ubyte.gz", "labels": "labels-idx1-ubyte.gz"}
    downloads = [
        Download(f"{url}/{prefix}-{suffix}", sha256[f"{prefix}_{kind}"])
        for prefix in ("train", "t10k")
        for kind, suffix in suffixes.items()
    ]
    return Source(folder, tuple(d.name for d in downloads), download_each(*downloads))


_MNIST = _idx_source(
    "mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    train_images="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    train_labels="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    t10k_images="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    t10k_labels="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
_FASHION = _idx_source(
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    train_images="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    train_labels="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    t10k_images="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    t10k_labels="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
_BATCHES = {
    f"cifar-10-batches-bin/{name}.bin": sha256
    for name, sha256 in {
        "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    }.items()
}
_ARCHIVE = Download(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    # The digest that several dataset libraries use. Only the members have been verified.
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_CIFAR = Source("cifar10", tuple(_BATCHES), download_members(_ARCHIVE, *_BATCHES))
