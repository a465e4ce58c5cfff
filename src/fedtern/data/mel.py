"""Log-mel spectrograms of one second of speech, 32 bands by 32 frames.

1. The clip, sampled at 16 kHz, is cut or zero-padded at its end to 16,000 samples.
2. Power spectra of 32 frames of 2,048 samples, 512 samples apart, with a Hann window.
3. Sums over 32 triangular bands on Slaney's mel scale.
4. Decibels relative to the loudest cell, cut at -80, mapped linearly to 0..255.
"""

from __future__ import annotations

import wave
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import DataError

RATE = 16_000
"""Samples per second."""

BANDS = 32
"""Rows of a spectrogram."""

FRAMES = 32
"""Columns of a spectrogram."""

_FRAME = 2_048  # samples
_HOP = 512  # samples
_FLOOR = 80.0  # decibels below the loudest cell
# Slaney's mel scale: linear up to 1 kHz, logarithmic above.
_LINEAR_HZ = 200 / 3
_BREAK_HZ = 1_000.0
_LOG_STEP = np.log(6.4) / 27


def read_wav(file: Path | IO[bytes], name: str) -> NDArray[np.float64]:
    """Read a mono wav file of 16-bit integers at 16 kHz.

    Args:
        file: a path or an open binary file.
        name: name of the file for error messages.

    Returns:
        The samples, between -1 and 1.

    Raises:
        DataError: the file is damaged or has another format.

    """
    try:
        with wave.open(str(file) if isinstance(file, Path) else file, "rb") as clip:
            channels = clip.getnchannels()
            width = clip.getsampwidth()
            rate = clip.getframerate()
            length = clip.getnframes()
            data = clip.readframes(length)
    except (wave.Error, EOFError) as error:
        raise DataError(f"{name} is not a wav file: {error}; download it again") from None
    if (channels, width, rate) != (1, 2, RATE):
        raise DataError(
            f"{name} must have 1 channel of 2-byte samples at {RATE} Hz, but has {channels} of"
            f" {width}-byte samples at {rate} Hz"
        )
    if len(data) != 2 * length:
        raise DataError(
            f"{name} must have {length} samples of 2 bytes, but has {len(data)} bytes; download"
            " it again"
        )
    return np.frombuffer(data, "<i2") / 32_768


def log_mel_spectrogram(samples: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return the spectrogram of a clip: rows are mel bands, columns are frames."""
    clip = samples[:RATE]
    padded = np.pad(clip, (_FRAME // 2, _FRAME // 2 + RATE - clip.size))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[::_HOP][:FRAMES]
    spectrum = np.fft.rfft(frames * _hann(), axis=1)
    # einsum, because BLAS threads cost more time than they save for such small matrices.
    power = np.einsum("mf,tf->mt", _mel_bands(), spectrum.real**2 + spectrum.imag**2)
    decibels = 10 * np.log10(np.maximum(power, 1e-10))
    decibels = np.maximum(decibels - decibels.max(), -_FLOOR)
    spectrogram: NDArray[np.uint8] = np.rint((decibels / _FLOOR + 1) * 255).astype(np.uint8)
    return spectrogram


@cache
def _hann() -> NDArray[np.float64]:
    # Periodic: the window continues with its first sample.
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FRAME) / _FRAME)


@cache
def _mel_bands() -> NDArray[np.float64]:
    """Return a matrix of bands (rows) by spectrum bins: triangles of area 1 in hertz."""
    hertz = np.linspace(0, RATE / 2, _FRAME // 2 + 1)
    corners = _to_hertz(np.linspace(0, _to_mel(RATE / 2), BANDS + 2))
    low = corners[:-2, None]
    centre = corners[1:-1, None]
    high = corners[2:, None]
    rising = (hertz - low) / (centre - low)
    falling = (high - hertz) / (high - centre)
    triangles: NDArray[np.float64] = np.maximum(np.minimum(rising, falling), 0) * 2 / (high - low)
    return triangles


def _to_mel(hertz: float) -> float:
    """Convert a frequency above 1 kHz to Slaney's mel scale."""
    return float(_BREAK_HZ / _LINEAR_HZ + np.log(hertz / _BREAK_HZ) / _LOG_STEP)


def _to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = mel * _LINEAR_HZ
    above = _BREAK_HZ * np.exp((mel - _BREAK_HZ / _LINEAR_HZ) * _LOG_STEP)
    return np.where(linear < _BREAK_HZ, linear, above)
