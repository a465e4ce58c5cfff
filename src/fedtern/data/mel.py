"""From a second of speech to a 32 by 32 picture of its mel spectrum.

A clip of 16 kHz is cut or zero-padded at its end to 16,000 samples; 32 Hann-windowed frames of
2,048 samples, 512 apart, give power spectra; 32 triangles on Slaney's mel scale sum them up; the
result is in decibels below the clip's loudest cell, down to -80, on a scale from 0 to 255.
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
"""Samples a second."""

BANDS = FRAMES = 32
"""Rows and columns of the picture."""

_FRAME, _HOP = 2_048, 512
_FLOOR = 80.0  # decibels below the loudest cell
_LINEAR_HZ, _BREAK_HZ = 200 / 3, 1_000.0  # Slaney: linear to 1 kHz, logarithmic above
_LOG_STEP = np.log(6.4) / 27


def read_wav(file: Path | IO[bytes], name: str) -> NDArray[np.float64]:
    """The samples of a 16 kHz mono wav of 16-bit integers, between -1 and 1."""
    try:
        with wave.open(str(file) if isinstance(file, Path) else file, "rb") as clip:
            form = clip.getnchannels(), clip.getsampwidth(), clip.getframerate()
            promised, data = clip.getnframes(), clip.readframes(clip.getnframes())
    except (wave.Error, EOFError) as error:
        raise DataError(f"{name} is not a wav file: {error}; fetch it again") from None
    if form != (1, 2, RATE):
        raise DataError(
            f"{name} must be 1 channel of 2-byte samples at {RATE} Hz, but is {form[0]} of"
            f" {form[1]}-byte samples at {form[2]} Hz"
        )
    if len(data) != 2 * promised:
        raise DataError(
            f"{name} must have {promised} samples of 2 bytes, but has {len(data)} bytes of them:"
            " fetch it again"
        )
    return np.frombuffer(data, "<i2") / 32_768


def features(samples: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The picture of a clip: mel bands from low to high, frames from first to last."""
    clip = samples[:RATE]
    padded = np.pad(clip, (_FRAME // 2, _FRAME // 2 + RATE - clip.size))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[::_HOP][:FRAMES]
    spectrum = np.fft.rfft(frames * _hann(), axis=1)
    # Not a matrix product: on so small a one, threads of BLAS cost far more than they save.
    power = np.einsum("mf,tf->mt", _mel_bands(), spectrum.real**2 + spectrum.imag**2)
    decibels = 10 * np.log10(np.maximum(power, 1e-10))
    decibels = np.maximum(decibels - decibels.max(), -_FLOOR)
    picture: NDArray[np.uint8] = np.rint((decibels / _FLOOR + 1) * 255).astype(np.uint8)
    return picture


@cache
def _hann() -> NDArray[np.float64]:
    # Periodic: its first missing sample would be the next zero.
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FRAME) / _FRAME)


@cache
def _mel_bands() -> NDArray[np.float64]:
    """One triangle a row, over the bins of a spectrum; each has area 1 in hertz."""
    hertz = np.linspace(0, RATE / 2, _FRAME // 2 + 1)
    corners = _to_hertz(np.linspace(0, _to_mel(RATE / 2), BANDS + 2))
    low, centre, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising, falling = (hertz - low) / (centre - low), (high - hertz) / (high - centre)
    triangles: NDArray[np.float64] = np.maximum(np.minimum(rising, falling), 0) * 2 / (high - low)
    return triangles


def _to_mel(hertz: float) -> float:
    """Slaney's mel, for a frequency above the break."""
    return float(_BREAK_HZ / _LINEAR_HZ + np.log(hertz / _BREAK_HZ) / _LOG_STEP)


def _to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = mel * _LINEAR_HZ
    above = _BREAK_HZ * np.exp((mel - _BREAK_HZ / _LINEAR_HZ) * _LOG_STEP)
    return np.where(linear < _BREAK_HZ, linear, above)
