"""Codecs that learn, while they code, in which rows and columns the non-zeros are.

Golomb codes assume that the non-zeros of an update are anywhere with equal probability. In real
updates, some rows and columns of each tensor have many of them and others none. The adaptive codec
counts them and codes each position with the probability that follows from these counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtern.core.codecs.codec import check_kind, open_payload
from fedtern.core.codecs.golomb import (
    decode_positions,
    encode_positions,
    max_encoded_bytes,
    read_count,
)
from fedtern.core.codecs.positions import PositionCodec
from fedtern.core.errors import DecodeError
from fedtern.core.kernels import (
    decode_adaptive,
    encode_adaptive,
    pack_levels,
    unpack_levels,
)
from fedtern.core.layout import Layout, Scope, check_scope
from fedtern.core.updates import Limits, Steps, Update
from fedtern.core.updates.steps import MAX_EXPONENT, MAX_STEPS, MIN_EXPONENT
from fedtern.core.wire import Reader, varint

_NO_MAGNITUDES = np.empty(0, np.int32)
_EXPONENT_BIAS = 128

# The coding of a steps update's positions and magnitudes.
_GOLOMB = 0
_ADAPTIVE = 1


def encode_entries(
    indices: NDArray[np.int64],
    magnitudes: NDArray[np.int32],
    largest: int,
    layout: Layout,
    limit: int,
) -> bytes | None:
    """Encode positions, and magnitudes from 1 to ``largest``; None beyond ``limit`` bytes.

    The stream follows its length: a shorter one could be that of other positions.
    """
    out = np.empty(max(limit, 0), np.uint8)
    length = encode_adaptive(indices, magnitudes, largest, layout.ends, layout.rows, out)
    if length < 0:
        return None
    data = varint(length) + out[:length].tobytes()
    return data if len(data) <= limit else None


def decode_entries(
    reader: Reader, count: int, largest: int, layout: Layout
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Decode positions, and their magnitudes if ``largest`` is above 1, from a message's rest.

    Raises:
        DecodeError: the bytes are not an adaptive code of ``count`` positions.

    """
    data = reader.take(reader.varint())
    reader.end()
    indices = np.empty(count, np.int64)
    magnitudes = np.empty(count if largest > 1 else 0, np.int32)
    stream = np.frombuffer(data, np.uint8)
    if decode_adaptive(stream, indices, magnitudes, largest, layout.ends, layout.rows) < 0:
        raise DecodeError(f"{len(data)} bytes are not an adaptive code of {count} positions")
    return indices, magnitudes


def _is_clearly_shorter(adaptive: bytes, most: int) -> bool:
    """Whether a code is shorter than a Golomb code of at most ``most`` bytes would be.

    With b low bits, each gap takes at least b + 1 bits and is at most 1 - 2**-b bits shorter than
    in the upper bound. So the Golomb code has at least three quarters of the bound.
    """
    return len(adaptive) + 4 < 0.75 * most  # four bytes: the codec's id, and unused bits


@dataclass(frozen=True)
class AdaptiveCodec:
    """Another codec with adaptively coded positions, where they are shorter.

    Format: ``id | payload of the other codec, with other positions``, or the other codec's payload.

    Args:
        plain: the codec of the same updates with Golomb-coded positions.

    """

    part_id: ClassVar[str] = "adaptive"
    id: ClassVar[int] = 18
    name: ClassVar[str] = "adaptive positions"
    plain: PositionCodec

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode the update in the shorter of the two ways."""
        head, indices = self.plain.encode_head(update, layout)
        most = max_encoded_bytes(indices, layout.size)
        adaptive = encode_entries(indices, _NO_MAGNITUDES, 1, layout, most)
        if adaptive is not None and _is_clearly_shorter(adaptive, most):
            return bytes([self.id]) + head + adaptive
        golomb = encode_positions(indices, layout.size)
        if adaptive is not None and 1 + len(adaptive) < len(golomb):
            return bytes([self.id]) + head + adaptive
        return head + golomb

    def decode(self, data: bytes, layout: Layout) -> Update:
        """Decode an update with either coding of its positions."""
        if data[:1] != bytes([self.id]):
            return self.plain.decode(data, layout)
        return self.plain.decode_with(data[1:], layout, read_adaptive)

    def max_bytes(self, limits: Limits, layout: Layout) -> int:
        """Return the bound of the other codec: adaptive positions are used where shorter."""
        return self.plain.max_bytes(limits, layout)


def read_adaptive(reader: Reader, count: int, layout: Layout) -> NDArray[np.int64]:
    """Read ``count`` adaptively coded positions from the rest of a message."""
    return decode_entries(reader, count, 1, layout)[0]


@dataclass(frozen=True)
class StepsCodec:
    """Codec of steps, and of their sums.

    Format: ``id | count | largest | exponents | signs | coding | positions and magnitudes``.

    Args:
        scope: whether the model or each tensor has an exponent.
        adaptive: whether positions and magnitudes are coded adaptively where this is shorter.

    """

    part_id: ClassVar[str] = "steps"
    scope: Scope = "model"
    adaptive: bool = True

    def __post_init__(self) -> None:
        check_scope(self.scope)

    @property
    def id(self) -> int:
        """19 with one exponent for the model, 20 with one for each tensor."""
        return 19 if self.scope == "model" else 20

    @property
    def name(self) -> str:
        """The name to display."""
        return "steps" if self.scope == "model" else "steps, by tensor"

    @staticmethod
    def of(update: Steps) -> StepsCodec:
        """Return the codec for the segments of an update."""
        return StepsCodec("model" if update.ends is None else "tensor")

    def encode(self, update: Update, layout: Layout) -> bytes:
        """Encode positions and magnitudes in the shorter of the two ways."""
        steps = check_kind(update, Steps)
        segments = layout.segments(self.scope).size
        if steps.exponents.size != segments:
            raise TypeError(
                f'this codec writes {segments} exponents with scope="{self.scope}", got'
                f" {steps.exponents.size}"
            )
        count = steps.indices.size
        largest = steps.largest
        magnitudes = np.abs(steps.steps)
        in_use = _in_use(steps.indices, layout.segments(self.scope))
        exponents = np.where(in_use, steps.exponents + _EXPONENT_BIAS, 0).astype(np.uint8)
        signs = np.packbits(steps.steps > 0, bitorder="little").tobytes()
        head = bytes([self.id]) + varint(count) + varint(largest) + exponents.tobytes() + signs
        adaptive = None
        if self.adaptive:
            width = (largest - 1).bit_length()
            most = max_encoded_bytes(steps.indices, layout.size) + (count * width + 7) // 8
            adaptive = encode_entries(steps.indices, magnitudes, largest, layout, most)
            if adaptive is not None and _is_clearly_shorter(adaptive, most):
                return head + bytes([_ADAPTIVE]) + adaptive
        golomb = _encode_plain(steps.indices, magnitudes, largest, layout)
        if adaptive is not None and len(adaptive) < len(golomb):
            return head + bytes([_ADAPTIVE]) + adaptive
        return head + bytes([_GOLOMB]) + golomb

    def decode(self, data: bytes, layout: Layout) -> Steps:
        """Decode positions below the layout's size, their signed steps and exponents."""
        reader = open_payload(data, self.id)
        ends = layout.segments(self.scope)
        count = read_count(reader, layout.size)
        largest = reader.varint()
        if not 1 <= largest <= (MAX_STEPS if count else 1):
            raise DecodeError(f"the largest of {count} steps cannot be {largest}")
        exponents = np.frombuffer(reader.take(ends.size), np.uint8).astype(np.int64)
        signs = np.unpackbits(reader.bits(count), count=count, bitorder="little")
        coding = reader.byte()
        if coding == _ADAPTIVE:
            indices, magnitudes = decode_entries(reader, count, largest, layout)
        elif coding == _GOLOMB:
            indices, magnitudes = _decode_plain(reader, count, largest, layout)
        else:
            raise DecodeError(f"unknown coding {coding} of positions")
        if largest == 1:
            magnitudes = np.ones(count, np.int32)
        elif magnitudes.max() != largest:
            raise DecodeError(f"the largest step is {magnitudes.max()}, expected {largest}")
        in_use = _in_use(indices, ends)
        exponents = np.where(in_use, exponents - _EXPONENT_BIAS, exponents)
        is_valid = np.where(
            in_use, (exponents >= MIN_EXPONENT) & (exponents <= MAX_EXPONENT), exponents == 0
        )
        if not is_valid.all():
            raise DecodeError(
                f"an exponent is not from {MIN_EXPONENT} to {MAX_EXPONENT}, or belongs to no"
                " position"
            )
        steps = np.where(signs, magnitudes, -magnitudes).astype(np.int32, copy=False)
        return Steps(
            layout.size, indices, steps, exponents, None if self.scope == "model" else ends
        )


def _in_use(indices: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each segment has an entry."""
    return np.diff(np.searchsorted(indices, ends), prepend=0) > 0


def _encode_plain(
    indices: NDArray[np.int64], magnitudes: NDArray[np.int32], largest: int, layout: Layout
) -> bytes:
    """Encode magnitudes with a fixed number of bits, and Golomb-coded positions."""
    packed = np.zeros(0, np.uint8)
    if largest > 1:
        width = (largest - 1).bit_length()
        packed = np.zeros((indices.size * width + 7) // 8, np.uint8)
        pack_levels(magnitudes - np.int32(1), width, packed)
    return packed.tobytes() + encode_positions(indices, layout.size)


def _decode_plain(
    reader: Reader, count: int, largest: int, layout: Layout
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    magnitudes = np.empty(count if largest > 1 else 0, np.int32)
    if largest > 1:
        width = (largest - 1).bit_length()
        packed = np.concatenate([reader.bits(count * width), np.zeros(8, np.uint8)])
        unpack_levels(packed, width, magnitudes)
        if magnitudes.max() >= largest:
            raise DecodeError(f"a step is above {largest}")
        magnitudes += np.int32(1)
    return decode_positions(reader, count, layout.size), magnitudes
