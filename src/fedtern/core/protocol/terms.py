"""Terms: the model and the method that both sides of a federation must agree on."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from fedtern.core.carried import NO_VALUES, Values, max_carried_bytes
from fedtern.core.codecs import BoundedCodec, StepsCodec
from fedtern.core.compressors import SubspaceCompressor, find_limits
from fedtern.core.envelope import BROADCAST, ENVELOPE_BYTES, unseal
from fedtern.core.errors import DecodeError, RemoteProtocolError
from fedtern.core.layout import Layout, Vector
from fedtern.core.methods import Method
from fedtern.core.updates import Limits
from fedtern.core.updates.steps import round_to_grid
from fedtern.core.wire import Reader, floats_view, u32

STAMP_BYTES = 3
MAX_ROUND = 2**32 - 2
"""The largest round of a federation: as many rounds can finish."""


@dataclass(frozen=True)
class Header:
    """The header of a message: the round it starts from, and the stamp of its history.

    A stamp identifies the history of a federation up to a round. It is a part of the checksum of
    the last broadcast, which itself contains the previous stamp. At round 0, it is a checksum of
    the federation's name and the initial weights.
    """

    kind: int
    stamp: bytes
    round: int

    def check_history(self, stamp: bytes, owner: str) -> None:
        """Check that the message belongs to the history of ``stamp``.

        Args:
            stamp: the stamp of the reader's history at the message's round.
            owner: the owner of this history, for the error message.

        Raises:
            RemoteProtocolError: the message belongs to another history.

        """
        if self.stamp != stamp:
            raise RemoteProtocolError(
                f"the message's history at round {self.round} is {self.stamp.hex()}, {owner} has"
                f" {stamp.hex()}: it belongs to another federation or to other initial weights, or"
                " one side was restored from an old state; a new client without weights can join"
            )


@dataclass(frozen=True)
class Terms:
    """The model's layout and the method, which both sides must agree on."""

    layout: Layout
    method: Method

    @cached_property
    def digest(self) -> bytes:
        """Six bytes at the start of each message's header."""
        return self.layout.digest + self.method.digest

    @cached_property
    def subspace_compressor(self) -> SubspaceCompressor | None:
        """The compressor of uploads, if it sends a subspace in which clients can train."""
        # Cached, because ``isinstance`` with a protocol takes longer than a step of a small model.
        compressor = getattr(self.method.up.feedback, "compressor", None)
        return compressor if isinstance(compressor, SubspaceCompressor) else None

    @cached_property
    def upload_limits(self) -> Limits:
        """The updates that the method can make; uploads of others are refused."""
        return find_limits(self.method.up.feedback, self.layout)

    @cached_property
    def has_one_magnitude(self) -> bool:
        """Whether the values of all uploads have the same magnitude."""
        return getattr(self.upload_limits, "magnitude", None) is not None

    @cached_property
    def max_upload_bytes(self) -> int | None:
        """The length of the longest upload; None if the method's codec does not state it."""
        codec = self.method.up.codec
        if not isinstance(codec, BoundedCodec):
            return None
        payload = codec.max_bytes(self.upload_limits, self.layout)
        header = len(self.header(bytes(STAMP_BYTES), 0))
        return ENVELOPE_BYTES + header + max_carried_bytes(self.layout) + payload

    @cached_property
    def has_steps(self) -> bool:
        """Whether broadcasts are steps, so that replicas add them exactly."""
        return isinstance(self.method.down.codec, StepsCodec)

    def initial_weights(self, weights: Vector) -> Vector:
        """Return the weights that a replica starts from; exact replicas start on a grid."""
        return round_to_grid(weights) if self.has_steps else weights

    def header(self, stamp: bytes, round: int) -> bytes:
        """Encode the header of a message."""
        return self.digest + stamp + u32(round)

    def open(self, data: bytes, *kinds: int) -> tuple[Header, Reader]:
        """Check the envelope and the header of a message.

        Args:
            data: the message.
            kinds: the kinds of messages to accept.

        Returns:
            The header, and a reader of the bytes after it.

        Raises:
            DecodeError: the message is damaged or of another kind.
            RemoteProtocolError: the peer has another layout or method.

        """
        kind, reader = unseal(data)
        if kind not in kinds:
            raise DecodeError(f"expected a message of kind {kinds}, got {kind}")
        peer_digest = reader.take(6)
        if peer_digest != self.digest:
            self._report_difference(peer_digest)
        header = Header(kind, reader.take(STAMP_BYTES), reader.u32())
        if header.round + (kind == BROADCAST) > MAX_ROUND:
            raise DecodeError(f"a federation has at most {MAX_ROUND} rounds, got {header.round}")
        return header, reader

    def _report_difference(self, peer_digest: bytes) -> NoReturn:
        if peer_digest[:3] != self.layout.digest:
            name = "layout"
            theirs = peer_digest[:3]
            ours = self.layout.digest
            details = f"{len(self.layout.names)} tensors, {self.layout.size} parameters"
        else:
            name = "method"
            theirs = peer_digest[3:]
            ours = self.method.digest
            details = self.method.spec.to_text()
        raise RemoteProtocolError(
            f"the peer's {name} is {theirs.hex()}, ours is {ours.hex()} ({details});"
            " use the same model and method on both sides"
        )


def initial_stamp(federation: str, weights: Vector, carried: Values = NO_VALUES) -> bytes:
    """Return the stamp of a federation at round 0."""
    # Buffers instead of bytes: the weights may be large.
    checksum = zlib.crc32(floats_view(weights), zlib.crc32(federation.encode()))
    for values in carried.values():
        checksum = zlib.crc32(values.data, checksum)
    return u32(checksum)[:STAMP_BYTES]
