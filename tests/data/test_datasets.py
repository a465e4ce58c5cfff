"""Datasets in memory, their files, and the real ones."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from fedtern.core.errors import DataError, MissingDataError, MissingExtraError
from fedtern.core.extras import install_command, require
from fedtern.data import DATASETS, Dataset, load
from fedtern.data import images as images_module
from fedtern.data import speech as speech_module
from fedtern.data.files import Download, Source, download_each, download_members

from .test_formats import write_pair
from .test_mel import tone, wav

BUNDLED = ("digits", "diabetes", "python-topics")  # parts of scikit-learn and Python


@pytest.fixture
def digits():
    pytest.importorskip("sklearn", reason="needs scikit-learn (the extra torch)")
    return load("digits")


def test_digits_load_from_scikit_learn_without_files(digits):
    assert digits.train_inputs.shape == (1_500, 1, 8, 8)
    assert digits.test_inputs.shape == (297, 1, 8, 8)
    assert digits.train_inputs.dtype == np.uint8
    inputs = digits.normalise(digits.train_inputs)
    assert inputs.mean() == pytest.approx(0, abs=1e-3)
    assert inputs.std() == pytest.approx(1, abs=1e-3)


def test_the_test_set_of_digits_is_the_same_in_every_version(digits):
    pixels = digits.test_inputs.tobytes() + digits.train_inputs.tobytes()
    digest = hashlib.sha256(pixels).hexdigest()
    assert digest[:16] == "41f1cde3d1230a38"


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("mnist", (60_000, 1, 28, 28), (10_000, 1, 28, 28)),
        ("fashion-mnist", (60_000, 1, 28, 28), (10_000, 1, 28, 28)),
        ("cifar10", (50_000, 3, 32, 32), (10_000, 3, 32, 32)),
        ("speech-commands", (21_115, 1, 32, 32), (2_567, 1, 32, 32)),
    ],
)
def test_real_datasets_have_the_published_shapes_and_are_standardised(real_data, name, train, test):
    data = load(name, real_data)
    assert (data.train_inputs.shape, data.test_inputs.shape) == (train, test)
    assert data.train_inputs.dtype == np.uint8
    inputs = data.normalise(data.train_inputs[::7])
    assert inputs.mean() == pytest.approx(0, abs=0.02)
    # CIFAR-10's usual constants are the mean deviation within an image, not over all pixels.
    assert inputs.std() == pytest.approx(1.25 if name == "cifar10" else 1, abs=0.02)


def test_each_channel_is_standardised_with_its_own_constants():
    pixels = np.full((1, 3, 2, 2), 255, np.uint8)
    data = Dataset(
        "one", pixels, [0], pixels, [0], 2, scale=255, mean=(0.0, 0.5, 1.0), std=(1.0, 0.5, 2.0)
    )
    assert data.normalise(pixels)[0, :, 0, 0].tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_classes": 1}, "num_classes must be at least 2, got 1"),
        ({"train_labels": [0, 5]}, "train_labels must lie between 0 and 1, got 0 to 5"),
        ({"train_labels": [0.0, 1.0]}, "train_labels must be a flat array of class numbers"),
        ({"test_inputs": np.zeros((3, 2))}, "test_inputs has 3 rows for 2 labels"),
        ({"test_inputs": np.zeros((2, 3))}, r"same shape, got \(2,\) and \(3,\)"),
        ({"groups": [1]}, "groups has 1 rows for 2 labels"),
        ({"mean": (0.0, 0.0, 0.0)}, "mean must have 1 value or one for each of 2 channels"),
        ({"std": (0.0,)}, "scale and std must be positive"),
    ],
)
def test_a_dataset_of_inconsistent_arrays_is_an_error(change, message):
    data = Dataset("two", np.zeros((2, 2)), [0, 1], np.zeros((2, 2)), [0, 1], 2)
    with pytest.raises(ValueError, match=message):
        replace(data, **change)


def test_arrays_with_any_byte_order_and_strides_are_accepted():
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    packed = np.zeros(4, [("tag", "u1"), ("row", "<f4", 2)])
    packed["row"] = rows
    for odd in (rows.astype(">f4"), rows[::-1], rows[:, ::-1], packed["row"]):
        data = Dataset("odd", odd, [0, 1, 0, 1][::-1], odd, np.array([0, 1, 0, 1], ">i8")[::-1], 2)
        for kept in (data.train_inputs, data.test_labels):
            assert kept.dtype.isnative
            assert all(step % kept.itemsize == 0 <= step for step in kept.strides)
        np.testing.assert_array_equal(data.train_inputs, odd)
    # Channels-last images must stay so: convolutions are faster, and round differently.
    pictures = np.zeros((2, 8, 8, 3), np.uint8).transpose(0, 3, 1, 2)
    kept = Dataset("pictures", pictures, [0, 1], pictures, [0, 1], 2).train_inputs
    assert kept.strides == pictures.strides


def test_files_are_read_from_data_dir_and_from_the_environment_variable(tmp_path, monkeypatch):
    for folder in ("mnist", "fashion-mnist"):
        (tmp_path / folder).mkdir()
        for prefix in ("train", "t10k"):
            write_pair(tmp_path / folder, np.full((2, 28, 28), 9), [1, 2], prefix)
    assert load("mnist", tmp_path).train_labels.tolist() == [1, 2]
    monkeypatch.setenv("FEDTERN_DATA", str(tmp_path))
    assert load("fashion-mnist").test_labels.tolist() == [1, 2]


def test_cifar_batches_are_concatenated_in_order(tmp_path):
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        (folder / f"{name}.bin").write_bytes(bytes([number]) + bytes(3072))
    data = load("cifar10", tmp_path)
    assert data.train_labels.tolist() == [0, 1, 2, 3, 4]
    assert data.test_labels.tolist() == [5]


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in BUNDLED])
def test_a_missing_file_is_an_error_of_one_line_with_its_path(tmp_path, name):
    with pytest.raises(
        MissingDataError, match=f"{name}: missing file {tmp_path}/{name}/.*; put it there"
    ) as error:
        load(name, tmp_path)
    assert "\n" not in str(error.value)


def test_an_unknown_dataset_is_an_error_that_suggests_names():
    with pytest.raises(
        ValueError, match=r"Unknown dataset 'fashon-mnist'\. Did you mean 'fashion-mnist'"
    ):
        load("fashon-mnist")
    with pytest.raises(ValueError, match=r"Unknown dataset 'zzz'\. Available: digits, mnist"):
        load("zzz")


URLS = {
    "mnist": "https://storage.googleapis.com/cvdf-datasets/mnist",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
}


@pytest.fixture
def cache(tmp_path, monkeypatch, no_environment):
    pytest.importorskip("tqdm")
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "cache")
    return tmp_path / "cache"


def serve(monkeypatch, files):
    """Replace the network: pooch downloads these files and no others."""
    import pooch

    def retrieve(url, known_hash, fname, path, *, progressbar):
        assert progressbar
        if url not in files:
            raise ConnectionError("Network is unreachable\nand a long traceback")
        if known_hash != f"sha256:{hashlib.sha256(files[url]).hexdigest()}":
            raise ValueError("SHA256 hash of downloaded file does not match the known hash")
        (path / fname).write_bytes(files[url])
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("source", [images_module._MNIST, images_module._FASHION])
def test_pinned_digests_match_the_real_files(real_data, cache, monkeypatch, source):
    folder = real_data / source.folder
    serve(
        monkeypatch, {f"{URLS[source.folder]}/{f}": (folder / f).read_bytes() for f in source.files}
    )
    assert all((source.locate(None) / name).is_file() for name in source.files)


def test_a_file_in_the_cache_is_not_downloaded_again(cache, monkeypatch):
    url = "https://example.org/a.gz"
    source = Source("some", ("a.gz",), download_each(Download(url, sha256(b"bytes"))))
    serve(monkeypatch, {url: b"bytes"})
    assert (source.locate(None) / "a.gz").read_bytes() == b"bytes"
    serve(monkeypatch, {})
    assert source.locate(None) == cache / "some"


def test_members_of_an_archive_are_extracted_and_the_archive_is_removed(cache, monkeypatch):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in ("in/a.bin", "in/b.bin"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    url = "https://example.org/all.tar.gz"
    archive = Download(url, sha256(file.getvalue()))
    serve(monkeypatch, {url: file.getvalue()})
    folder = Source("some", ("in/a.bin",), download_members(archive, "in/a.bin")).locate(None)
    assert (folder / "in" / "a.bin").read_bytes() == b"abc"
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["a.bin"]


def test_a_failed_download_is_an_error_of_one_line_with_the_path_to_save_to(cache, monkeypatch):
    serve(monkeypatch, {})
    message = r"Cannot download .* from http.* \(ConnectionError\); download it yourself and save"
    with pytest.raises(MissingDataError, match=message) as error:
        load("mnist")
    assert "\n" not in str(error.value)
    assert str(cache / "mnist" / "train-images-idx3-ubyte.gz") in str(error.value)


def test_a_download_with_another_digest_is_an_error(cache, monkeypatch):
    url = "https://example.org/a.gz"
    serve(monkeypatch, {url: b"tampered"})
    with pytest.raises(
        DataError, match=r"a\.gz from https.* does not have SHA-256 [0-9a-f]{64}; the"
    ):
        Source("some", ("a.gz",), download_each(Download(url, sha256(b"bytes")))).locate(None)


@pytest.mark.parametrize(("module", "name"), [("sklearn.datasets", "digits"), ("pooch", "mnist")])
def test_a_missing_library_is_an_error_with_the_install_command(
    monkeypatch, no_environment, module, name
):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
    with pytest.raises(MissingExtraError, match=re.escape(install_command("torch"))):
        load(name)


def test_importing_data_needs_no_extra():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'sklearn', 'pooch')));"
        "import fedtern.data, fedtern.data.splits"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_speech_commands_are_downloaded_prepared_and_the_archive_is_removed(cache, monkeypatch):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for word in speech_module.WORDS:
            for speaker in ("00176480", "022cd682"):  # the second is a published test speaker
                member = tarfile.TarInfo(f"./{word}/{speaker}_nohash_0.wav")
                clip = wav(tone(440, 0.1))
                member.size = len(clip)
                tar.addfile(member, io.BytesIO(clip))
    archive = replace(speech_module._ARCHIVE, sha256=sha256(file.getvalue()))
    monkeypatch.setattr(speech_module, "_ARCHIVE", archive)
    serve(monkeypatch, {archive.url: file.getvalue()})
    assert len(load("speech-commands").train_labels) == 10
    assert [path.name for path in (cache / "speech-commands").iterdir()] == [
        "speech-commands-10.npz"
    ]
    serve(monkeypatch, {})
    assert len(load("speech-commands").test_labels) == 10


def test_a_library_that_fails_to_import_is_not_reported_as_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("import missing_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="missing_dependency"):
        require("broken_extra", "torch", "this test")
