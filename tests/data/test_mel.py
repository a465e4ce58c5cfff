"""Wav files and log-mel spectrograms."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest

from fedtern.core.errors import DataError
from fedtern.data.mel import RATE, log_mel_spectrogram, read_wav
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


def test_spectrograms_equal_the_prepared_ones_for_all_sample_wavs(real_data):
    folder = real_data / "speech-commands"
    if not (folder / "sample").is_dir():
        pytest.skip(f"needs sample wav files in {folder / 'sample'}")
    ours = read_tree(folder / "sample")
    prepared = read_prepared(folder / "speech-commands-10.npz")
    index = {name: i for i, name in enumerate(prepared.names)}
    theirs = prepared.spectrograms[[index[name] for name in ours.names]]
    assert len(ours.names) == 200
    assert np.array_equal(ours.spectrograms, theirs)


@pytest.mark.parametrize(
    # Band b is centred at step b + 1 of 33 equal steps from 0 to 45.2 mel (Slaney), or 8 kHz.
    ("hertz", "band"),
    [(91.4, 0), (457.2, 4), (1_032.3, 10), (3_049.2, 22), (7_259.1, 31)],
)
def test_a_tone_is_loudest_in_the_band_around_it(hertz, band):
    spectrogram = log_mel_spectrogram(tone(hertz))
    assert (spectrogram[:, 4:28].argmax(axis=0) == band).all()


def test_the_loudest_cell_is_255_and_silence_after_a_tone_is_0():
    spectrogram = log_mel_spectrogram(tone(1_000, seconds=0.25))
    assert spectrogram.max() == 255
    assert (spectrogram[:, 12:] == 0).all()


def test_the_spectrogram_does_not_depend_on_loudness():
    sound = tone(700) + tone(2_500)
    difference = log_mel_spectrogram(sound).astype(int) - log_mel_spectrogram(sound / 8)
    assert np.abs(difference).max() <= 1


def test_the_spectrogram_of_silence_is_uniform():
    assert (log_mel_spectrogram(np.zeros(RATE)) == 255).all()


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.0, 1.7])
def test_a_clip_of_any_length_gives_32_bands_by_32_frames(seconds):
    spectrogram = log_mel_spectrogram(tone(440, seconds))
    assert spectrogram.shape == (32, 32)
    assert spectrogram.dtype == np.uint8


def test_only_the_first_second_is_used():
    assert np.array_equal(log_mel_spectrogram(tone(440, 2.0)), log_mel_spectrogram(tone(440)))


def test_read_wav_returns_the_samples_that_were_written():
    samples = tone(440, 0.1)
    np.testing.assert_allclose(read_wav(io.BytesIO(wav(samples)), "a"), samples, atol=1e-4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"RIFF", "not a wav file"),
        (b"what is this, a song?", "not a wav file"),
        (wav(tone(440), rate=8_000), "at 16000 Hz, but has 1 of 2-byte samples at 8000 Hz"),
        (wav(tone(440), channels=2), "must have 1 channel"),
        (wav(tone(440))[:-1001], "must have 16000 samples of 2 bytes, but has 30999 bytes"),
        (wav(tone(440))[:-1000], "must have 16000 samples of 2 bytes, but has 31000 bytes"),
    ],
)
def test_an_unsupported_or_damaged_wav_file_is_an_error_that_names_it(data, message):
    with pytest.raises(DataError, match=f"clip.wav .*{message}"):
        read_wav(io.BytesIO(data), "clip.wav")
