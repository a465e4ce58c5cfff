"""Gaussian noise: from the operating system's entropy, or from a seed for simulations."""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from fedtern.core.protocol.seeded_rng import seeded_rng

Wide = NDArray[np.float64]

_CHUNK = 1 << 18  # values that are drawn at once
_TERMS = 4


def gaussian_noise(size: int, scale: float, key: tuple[int, ...] | None) -> Wide:
    """Draw independent Gaussian values.

    Args:
        size: number of values.
        scale: standard deviation.
        key: key of a deterministic generator, for simulations: everyone who knows the seed can
            subtract the noise. None to use the operating system's secure generator.

    """
    if key is not None:
        return scale * seeded_rng(*key).standard_normal(size)
    noise = np.empty(size, np.float64)
    for start in range(0, size, _CHUNK):
        part = noise[start : start + _CHUNK]
        # A sum of four values has too many possible origins to be traced back through its rounding
        # (Holohan and Braghin, 2021). This makes the attack of Mironov (2012) harder, no more.
        part[:] = sum(_secure_normal(part.size) for _ in range(_TERMS))
    noise *= scale / np.sqrt(_TERMS)
    return noise


def _secure_normal(size: int) -> Wide:
    """Draw standard normal values by the method of Box and Muller."""
    pairs = (size + 1) // 2
    words = np.frombuffer(secrets.token_bytes(16 * pairs), np.uint64) >> np.uint64(11)
    uniform = words.astype(np.float64) * 2.0**-53  # in [0, 1)
    radius = np.sqrt(-2.0 * np.log1p(-uniform[:pairs]))
    angle = 2.0 * np.pi * uniform[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
