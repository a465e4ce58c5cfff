"""The path from sound to picture."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest

from fedtern.core.errors import DataError
from fedtern.data.mel import RATE, features, read_wav
from fedtern.data.speech import read_prepared, read_tree


def tone(hertz, seconds=1.0):
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)


def wav(samples, channels=1, width=2, rate=RATE):
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setnchannels(channels)
        clip.setsampwidth(width)
        clip.setframerate(rate)
        clip.writeframes(np.rint(samples * 32_767).astype("<i2").tobytes())
    return file.getvalue()


def test_features_agree_with_prepared_ones_on_every_sample_wav(real_data):
    folder = real_data / "speech-commands"
    if not (folder / "sample").is_dir():
        pytest.skip(f"put sample wavs into {folder / 'sample'} to run this test")
    ours = read_tree(folder / "sample")
    prepared = read_prepared(folder / "speech-commands-10.npz")
    place = {name: at for at, name in enumerate(prepared.names)}
    theirs = prepared.pictures[[place[name] for name in ours.names]]
    assert len(ours.names) == 200
    assert np.array_equal(ours.pictures, theirs)


@pytest.mark.parametrize(
    # Band b is centred on b + 1 of 33 equal steps from 0 to Slaney's 45.2 mel of 8 kHz.
    ("hertz", "band"),
    [(91.4, 0), (457.2, 4), (1_032.3, 10), (3_049.2, 22), (7_259.1, 31)],
)
def test_a_tone_is_brightest_in_the_band_around_it(hertz, band):
    picture = features(tone(hertz))
    assert (picture[:, 4:28].argmax(axis=0) == band).all()


def test_the_loudest_cell_is_255_and_silence_next_to_sound_is_0():
    picture = features(tone(1_000, seconds=0.25))
    assert picture.max() == 255
    assert (picture[:, 12:] == 0).all()


def test_loudness_does_not_change_the_picture():
    sound = tone(700) + tone(2_500)
    difference = features(sound).astype(int) - features(sound / 8)
    assert np.abs(difference).max() <= 1


def test_silence_is_a_picture_without_contrast():
    assert (features(np.zeros(RATE)) == 255).all()


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.0, 1.7])
def test_a_clip_of_any_length_gives_32_by_32(seconds):
    picture = features(tone(440, seconds))
    assert picture.shape == (32, 32)
    assert picture.dtype == np.uint8


def test_only_the_first_second_counts():
    assert np.array_equal(features(tone(440, 2.0)), features(tone(440)))


def test_a_wav_holds_what_was_written():
    samples = tone(440, 0.1)
    np.testing.assert_allclose(read_wav(io.BytesIO(wav(samples)), "a"), samples, atol=1e-4)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"RIFF", "not a wav file"),
        (b"what is this, a song?", "not a wav file"),
        (wav(tone(440), rate=8_000), "at 16000 Hz, but is 1 of 2-byte samples at 8000 Hz"),
        (wav(tone(440), channels=2), "must be 1 channel"),
        (wav(tone(440))[:-1001], "must have 16000 samples of 2 bytes, but has 30999 bytes"),
        (wav(tone(440))[:-1000], "must have 16000 samples of 2 bytes, but has 31000 bytes"),
    ],
)
def test_a_wav_of_another_kind_is_named_with_what_was_expected(data, words):
    with pytest.raises(DataError, match=f"clip.wav .*{words}"):
        read_wav(io.BytesIO(data), "clip.wav")
