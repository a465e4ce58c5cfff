"""What the two sides of a federation have to agree on before they understand each other."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from fedtern.core.compressors import SubspaceCompressor
from fedtern.core.envelope import unseal
from fedtern.core.errors import DecodeError, RemoteProtocolError
from fedtern.core.layout import Layout, Vector
from fedtern.core.methods import Method
from fedtern.core.wire import Reader, floats, u32

STAMP = 3  # bytes


@dataclass(frozen=True)
class Head:
    """Where a message belongs: the round it starts from, and the history that led there.

    The stamp of a history is the checksum of its last broadcast, which itself carries the stamp
    before it; at round 0 it is that of the initial weights and the federation's name.
    """

    kind: int
    stamp: bytes
    round: int

    def check_history(self, stamp: bytes, who: str) -> None:
        """Refuse a message from another history of the same round."""
        if self.stamp != stamp:
            raise RemoteProtocolError(
                f"the message's history at round {self.round} is {self.stamp.hex()}, {who} has"
                f" {stamp.hex()}: it is another federation, other initial weights, or one of the"
                " two went back to an old state; a new client, without weights, can join again"
            )


@dataclass(frozen=True)
class Terms:
    """What both sides must agree on: model and method."""

    layout: Layout
    method: Method

    @cached_property
    def digest(self) -> bytes:
        """Six bytes at the head of each message."""
        return self.layout.digest + self.method.digest

    @cached_property
    def restricting(self) -> SubspaceCompressor | None:
        """The upward compressor, if clients can train in what it sends; few can."""
        # Kept, because asking a protocol takes longer than many a step.
        compressor = getattr(self.method.up.feedback, "compressor", None)
        return compressor if isinstance(compressor, SubspaceCompressor) else None

    def head(self, stamp: bytes, round: int) -> bytes:
        """What the body of each message begins with."""
        return self.digest + stamp + u32(round)

    def open(self, data: bytes, *kinds: int) -> tuple[Head, Reader]:
        """Unseal a message of one of these kinds, sent under these terms."""
        kind, reader = unseal(data)
        if kind not in kinds:
            raise DecodeError(f"expected a message of kind {kinds}, got {kind}")
        theirs = reader.take(6)
        if theirs != self.digest:
            self._disagree(theirs)
        return Head(kind, reader.take(STAMP), reader.u32()), reader

    def _disagree(self, theirs: bytes) -> NoReturn:
        layout = f"{len(self.layout.names)} tensors, {self.layout.size} parameters"
        what, part, ours = ("layout", slice(0, 3), layout)
        if theirs[part] == self.digest[part]:
            what, part, ours = ("method", slice(3, 6), self.method.spec.to_text())
        raise RemoteProtocolError(
            f"the peer's {what} is {theirs[part].hex()}, ours is {self.digest[part].hex()} ({ours})"
        )


def first_stamp(federation: str, weights: Vector) -> bytes:
    """The stamp of a federation that has only begun."""
    return u32(zlib.crc32(floats(weights), zlib.crc32(federation.encode())))[:STAMP]
