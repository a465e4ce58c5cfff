"""Shamir's secret sharing over the integers modulo the prime 2**127 - 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

PRIME = (1 << 127) - 1
SECRET_BYTES = 16
"""Length of a secret and of a share: numbers below ``PRIME``, little-endian."""


def random_secret(entropy: Callable[[int], bytes]) -> bytes:
    """Return a uniformly random secret.

    Args:
        entropy: returns the given number of random bytes, such as ``secrets.token_bytes``.

    """
    while True:
        number = int.from_bytes(entropy(SECRET_BYTES), "little") & PRIME
        if number < PRIME:
            return number.to_bytes(SECRET_BYTES, "little")


def split(
    secret: bytes, points: Sequence[int], threshold: int, entropy: Callable[[int], bytes]
) -> list[bytes]:
    """Split a secret into one share for each point; fewer than ``threshold`` reveal nothing.

    Args:
        secret: the secret, from ``random_secret``.
        points: different numbers from 1 on, one for each share.
        threshold: the number of shares that give the secret back.
        entropy: returns the given number of random bytes.

    Raises:
        ValueError: there are fewer points than ``threshold``.

    """
    if not 1 <= threshold <= len(points):
        raise ValueError(f"threshold must be from 1 to {len(points)}, got {threshold}")
    coefficients = [int.from_bytes(random_secret(entropy), "little") for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "little"))
    shares = []
    for point in points:
        value = 0
        for coefficient in coefficients:  # the highest power first
            value = (value * point + coefficient) % PRIME
        shares.append(value.to_bytes(SECRET_BYTES, "little"))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of as many shares as the threshold, by point.

    Wrong shares give a wrong secret; the caller has to check it.

    >>> from secrets import token_bytes
    >>> secret = random_secret(token_bytes)
    >>> shares = split(secret, [1, 2, 3], 2, token_bytes)
    >>> combine({1: shares[0], 3: shares[2]}) == secret
    True
    """
    points = tuple(sorted(shares))
    total = sum(
        weight * int.from_bytes(shares[point], "little")
        for point, weight in zip(points, _weights(points), strict=True)
    )
    return (total % PRIME).to_bytes(SECRET_BYTES, "little")


@lru_cache(256)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's weights of points, for the value at zero."""
    weights = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
