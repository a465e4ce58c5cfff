"""Speech Commands from wav files, from the prepared file and from the archive."""

from __future__ import annotations

import contextlib
import io
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtern.core.errors import DataError, MissingDataError
from fedtern.data import load
from fedtern.data.speech import (
    WORDS,
    Clips,
    is_test_speaker,
    read_archive,
    read_prepared,
    read_tree,
    write_prepared,
)

from .test_mel import tone, wav

SPEAKERS = ("00176480", "10ace7eb", "022cd682")  # the last is in the published testing list


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "speech-commands"
    for number, word in enumerate(WORDS):
        (root / word).mkdir(parents=True)
        for speaker in SPEAKERS:
            clip = wav(tone(300 + 100 * number, 0.2))
            (root / word / f"{speaker}_nohash_0.wav").write_bytes(clip)
    return root


def test_folders_of_wav_files_give_a_dataset_grouped_by_speaker(tree):
    data = load("speech-commands", tree.parent)
    assert data.train_inputs.shape == (20, 1, 32, 32)
    assert data.test_inputs.shape == (10, 1, 32, 32)
    assert data.train_labels.tolist() == np.repeat(np.arange(10), 2).tolist()
    assert data.groups.tolist() == [0, 1] * 10


def test_the_prepared_file_gives_the_same_data_as_the_wav_files(tree):
    clips = read_tree(tree)
    write_prepared(tree / "speech-commands-10.npz", clips)
    again = read_prepared(tree / "speech-commands-10.npz")
    assert again.names == clips.names
    assert np.array_equal(again.spectrograms, clips.spectrograms)
    assert np.array_equal(
        load("speech-commands", tree.parent).test_inputs, clips.dataset().test_inputs
    )


def test_the_archive_gives_the_same_clips_as_the_wav_files(tree, tmp_path):
    path = tmp_path / "archive.tar.gz"
    (tree / "seven").mkdir()
    (tree / "seven" / "00176480_nohash_0.wav").write_bytes(b"another word")
    with tarfile.open(path, "w:gz") as tar:
        tar.add(tree, arcname=".")
    clips = read_archive(path)
    direct = read_tree(tree)
    assert clips.names == direct.names
    assert np.array_equal(clips.spectrograms, direct.spectrograms)


def test_is_test_speaker_agrees_with_the_published_testing_list(real_data):
    path = real_data / "speech-commands" / "speech-commands-10.npz"
    with np.load(path) as arrays:
        names = arrays["names"]
        split = arrays["split"]
    ours = [is_test_speaker(name.partition("/")[2].partition("_nohash_")[0]) for name in names]
    assert np.array_equal(ours, split == 2)


def test_a_word_without_wav_files_is_an_error_that_names_it(tree):
    for clip in (tree / "stop").iterdir():
        clip.unlink()
    with pytest.raises(DataError, match="stop has no wav files of the word 'stop'"):
        load("speech-commands", tree.parent)


def test_an_empty_data_directory_is_an_error_that_names_the_missing_file(tmp_path):
    with pytest.raises(MissingDataError, match=r"speech-commands.speech-commands-10\.npz.*put"):
        load("speech-commands", tmp_path)


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must be an npz file with arrays features and names"),
        (b"PK\x03\x04 and then nonsense", "must be an npz file with arrays features and names"),
        (npz(features=np.zeros(1)), "must be an npz file with arrays features and names"),
        (
            npz(features=np.zeros((1, 32, 32)), names=["go/a"]),
            r"uint8 \(1, 32, 32\), but has float64",
        ),
        (npz(features=np.zeros((1, 32, 32), np.uint8), names=["cat/a"]), "but has 'cat/a'"),
    ],
)
def test_a_damaged_prepared_file_is_an_error_that_names_it(tmp_path, data, message):
    path = tmp_path / "broken.npz"
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"broken.npz {message}|broken.npz .*{message}"):
        read_prepared(path)


@given(st.data())
def test_a_flipped_bit_in_a_prepared_file_is_an_error_or_changes_nothing(tmp_path_factory, data):
    spectrograms = np.full((1, 32, 32), 3, np.uint8)
    raw = bytearray(npz(features=spectrograms, names=["go/a_nohash_0.wav"]))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    path = tmp_path_factory.getbasetemp() / "flipped.npz"
    path.write_bytes(raw)
    with contextlib.suppress(DataError):
        assert np.array_equal(read_prepared(path).spectrograms, spectrograms)


def test_clips_are_grouped_by_speaker():
    names = ("yes/cc_nohash_0.wav", "go/dd_nohash_0.wav", "go/cc_nohash_1.wav")
    assert Clips(np.zeros((3, 32, 32), np.uint8), names).dataset().groups.tolist() == [0, 1, 0]
