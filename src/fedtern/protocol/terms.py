"""What the two sides of a federation have to agree on before they understand each other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from fedtern.envelope import unseal
from fedtern.errors import DecodeError, RemoteProtocolError
from fedtern.layout import Layout
from fedtern.methods import Method
from fedtern.wire import Reader


@dataclass(frozen=True)
class Terms:
    """What both sides must agree on: federation, model and method."""

    federation: str
    layout: Layout
    method: Method

    @cached_property
    def digest(self) -> bytes:
        """Nine bytes at the head of each message."""
        name = hashlib.sha256(self.federation.encode()).digest()[:3]
        return name + self.layout.digest + self.method.digest

    def open(self, data: bytes, *kinds: int) -> tuple[int, Reader]:
        """Unseal a message of one of these kinds, sent under these terms."""
        kind, reader = unseal(data)
        if kind not in kinds:
            raise DecodeError(f"expected a message of kind {kinds}, got {kind}")
        theirs = reader.take(9)
        if theirs != self.digest:
            self._disagree(theirs)
        return kind, reader

    def _disagree(self, theirs: bytes) -> NoReturn:
        parts = (
            ("federation", repr(self.federation)),
            ("layout", f"{len(self.layout.names)} tensors, {self.layout.size} parameters"),
            ("method", repr(self.method)),
        )
        for i, (what, ours) in enumerate(parts):
            mine, peer = self.digest[3 * i : 3 * i + 3], theirs[3 * i : 3 * i + 3]
            if mine != peer:
                raise RemoteProtocolError(
                    f"the peer's {what} is {peer.hex()}, ours is {mine.hex()} ({ours})"
                )
        raise AssertionError("the digests are equal")
