"""Positions as Golomb-coded gaps (Algorithms 3 and 4 of the paper)."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import DecodeError
from fedtern.core.kernels import decode_gaps, encode_gaps
from fedtern.core.wire import Reader

# The largest density for which b = 1, 2, 3 ... low bits are best: Algorithm 3's
# b* = 1 + floor(log2(log(phi - 1) / log(1 - p))) solved for p, which is 1 - (phi - 1)**(2**(1-b)).
# Literal numbers, so that every reader of the format uses the same ones on every machine.
MAX_DENSITY = (
    0.38196601125010515,
    0.21384862224257672,
    0.11334822068783774,
    0.05837811234436449,
    0.029627964306660624,
    0.014925365419787404,
    0.007490738289958024,
    0.0037524094332564077,
    0.0018779680987181053,
    0.0009394253093149434,
    0.00046982302149323424,
    0.00023493910893907167,
    0.00011747645482825534,
    5.8739952605143694e-05,
    2.9370407612993524e-05,
    1.468531163568568e-05,
    7.34268277533801e-06,
    3.67134812706754e-06,
    1.8356757483864967e-06,
    9.178382954068166e-07,
    4.5891925300684866e-07,
    2.2945965282929047e-07,
    1.1472983299611253e-07,
    5.7364918143423184e-08,
    2.868245948305333e-08,
    1.4341229844362103e-08,
    7.170614947889911e-09,
    3.5853074803721703e-09,
    1.7926537417928889e-09,
    8.963268712981454e-10,
    4.481634357494979e-10,
    2.2408171789985525e-10,
    1.120408589562042e-10,
    5.6020429479671245e-11,
    2.801021474022791e-11,
    1.4005107370212026e-11,
    7.002553685130531e-12,
    3.501276842571395e-12,
    1.75063842128723e-12,
    8.753192106439981e-13,
    4.376596053220948e-13,
    2.1882980266107133e-13,
    1.0941490133054165e-13,
    5.470745066527232e-14,
    2.7353725332636535e-14,
    1.367686266631836e-14,
    6.838431333159204e-15,
    3.419215666579608e-15,
)
_ASCENDING = MAX_DENSITY[::-1]


def golomb_width(count: float, size: float) -> int:
    """Return b*, the number of low bits of each gap, for ``count`` positions below ``size``.

    >>> golomb_width(10, 1000), golomb_width(1, 400), golomb_width(1, 2)
    (6, 8, 0)
    """
    if not count:
        return 0
    return len(_ASCENDING) - bisect_left(_ASCENDING, count / size)


def max_encoded_bytes(indices: NDArray[np.int64], size: int) -> int:
    """Return an upper bound of the length of ``encode_positions``."""
    width = golomb_width(indices.size, size)
    return (indices.size * width + 7) // 8 + _max_quotient_bytes(indices, width)


def _max_quotient_bytes(indices: NDArray[np.int64], width: int) -> int:
    if not indices.size:
        return 0
    # The sum of the gaps' quotients is at most the quotient of the sum of the gaps.
    quotients = ((int(indices[-1]) + 1 - indices.size) >> width) + indices.size
    return (quotients + 7) // 8


def max_position_bytes(count: int, size: int) -> int:
    """Return an upper bound of the length of ``encode_positions`` of up to ``count`` positions."""
    width = golomb_width(count, size)
    quotients = (max(size - count, 0) >> width) + count
    # One bit per position more: fewer positions have wider remainders, and at the limits between
    # two widths the code of slightly fewer positions can be a little longer.
    return (count * (width + 1) + quotients) // 8 + 4


def encode_positions(indices: NDArray[np.int64], size: int) -> bytes:
    """Encode strictly increasing positions below ``size`` as ``remainders | quotients``."""
    width = golomb_width(indices.size, size)
    low_bytes = (indices.size * width + 7) // 8
    out = np.empty(low_bytes + _max_quotient_bytes(indices, width), np.uint8)
    used = encode_gaps(indices, width, out[:low_bytes], out[low_bytes:])
    return out[: low_bytes + (used + 7) // 8].tobytes()


def decode_positions(reader: Reader, count: int, size: int) -> NDArray[np.int64]:
    """Read ``count`` positions below ``size`` from the rest of a message.

    Raises:
        DecodeError: the rest of the message is not ``count`` such positions.

    """
    if count > size:
        raise DecodeError(f"{count} positions do not fit {size} parameters")
    width = golomb_width(count, size)
    low = reader.bits(count * width)
    high = reader.rest()
    # Every position takes at least one bit of the quotients. Checked before allocating them.
    if count > 8 * len(high):
        raise DecodeError(f"message is too short for {count} positions")
    indices = np.empty(count, np.int64)
    # The kernel reads whole words, so both parts need spare bytes. The quotients serve as those of
    # the remainders.
    both = np.frombuffer(b"".join([low.data, high, bytes(8)]), np.uint8)
    used = decode_gaps(both, both[low.size :], 8 * len(high), width, size, indices)
    if used < 0:
        raise DecodeError(f"positions run past the end of {size} parameters or of the message")
    if len(high) != (used + 7) // 8 or (used % 8 and high[-1] >> (used % 8)):
        raise DecodeError("bits after the last position")
    return indices


def read_count(reader: Reader, size: int) -> int:
    """Read a number of non-zeros, and check it before memory is allocated for them."""
    count = reader.varint()
    if count > min(size, 8 * reader.remaining):
        raise DecodeError(
            f"{count} non-zeros do not fit {size} parameters and {reader.remaining} bytes"
        )
    return count
