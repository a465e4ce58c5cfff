"""Links and methods."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fedtern.core.codecs import Codec, DenseCodec, SparseOrDenseCodec
from fedtern.core.compressors import Identity
from fedtern.core.feedback import ErrorFeedback, Feedback, Memoryless
from fedtern.core.layout import Vector
from fedtern.core.methods.aggregation import Aggregate
from fedtern.core.methods.server_optimizers import ServerOptimizer
from fedtern.core.methods.spec import MethodSpec, Parameter, canonical_json, describe_part
from fedtern.core.updates import SPARSE_UPDATES, Update

Momentum = Literal["keep", "mask", "feedback"]
Loss = Literal["none", "unbiased", "biased", "error feedback"]


@dataclass(frozen=True)
class Link:
    """One direction of traffic: a feedback rule (with its compressor) and a codec."""

    feedback: Feedback
    codec: Codec

    @property
    def loss(self) -> Loss:
        """How the updates of this link differ from the exact deltas."""
        compressor = getattr(self.feedback, "compressor", None)
        if compressor is not None and compressor.loss == "none":
            return "none"
        if isinstance(self.feedback, Memoryless):
            loss: Loss = self.feedback.compressor.loss
            return loss
        return "error feedback"

    def describe(self) -> dict[str, Any]:
        """Describe both parts by their stable ids and fields."""
        return {"feedback": describe_part(self.feedback), "codec": describe_part(self.codec)}


@dataclass(frozen=True)
class Method:
    """The settings that server and clients must agree on, apart from the model.

    Args:
        up: the link from clients to the server.
        down: the link from the server to clients.
        local_steps: local iterations between two uploads of a client.
        aggregate: how the server combines uploads.
        momentum: what happens to a client's momentum: "keep" leaves it alone, "mask" resets it
            for entries included in the upload, "feedback" means that the feedback rule has a
            momentum of its own and training uses none.
        server_optimizer: applied to the aggregate before it is compressed; None for the aggregate
            itself.
        name: the registered name; empty for a method that is not registered.
        version: the version of the registered method.
        parameters: the parameters of the registered method.

    """

    up: Link
    down: Link
    local_steps: int
    aggregate: Aggregate
    momentum: Momentum = "keep"
    server_optimizer: ServerOptimizer | None = None
    name: str = ""
    version: int = 1
    parameters: Mapping[str, Parameter] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.up, Link) or not isinstance(self.down, Link):
            raise TypeError(f"up and down must be links, got {self.up!r} and {self.down!r}")
        object.__setattr__(self, "local_steps", operator.index(self.local_steps))
        if self.local_steps < 1:
            raise ValueError(f"local_steps must be at least 1, got {self.local_steps}")
        if self.momentum not in ("keep", "mask", "feedback"):
            raise ValueError(
                f'momentum must be "keep", "mask" or "feedback", got {self.momentum!r}'
            )

    def mask_momentum(self, velocity: Vector, update: Update) -> None:
        """Reset a client's velocity, in place, for entries included in an upload.

        Does nothing unless the method's ``momentum`` is "mask".
        """
        if self.momentum == "mask" and isinstance(update, SPARSE_UPDATES):
            velocity[update.indices] = 0

    @property
    def spec(self) -> MethodSpec:
        """Name, version and parameters, which peers compare and stores keep."""
        return MethodSpec(self.name, self.version, self.parameters)

    def describe(self) -> dict[str, Any]:
        """Describe the spec and every part, by stable ids only."""
        described = {
            **self.spec.to_json(),
            "up": self.up.describe(),
            "down": self.down.describe(),
            "local_steps": self.local_steps,
            "aggregate": describe_part(self.aggregate),
            "momentum": self.momentum,
        }
        if self.server_optimizer is not None:  # methods without one keep their digest
            described["server_optimizer"] = describe_part(self.server_optimizer)
        return described

    @cached_property
    def digest(self) -> bytes:
        """Three bytes in the header of each message that identify the method.

        The first bytes of the SHA-256 of ``describe()`` as canonical JSON.
        """
        return hashlib.sha256(canonical_json(self.describe()).encode()).digest()[:3]


def dense_link() -> Link:
    """Make a link that sends all values unchanged."""
    # Error feedback, although compression loses nothing: it keeps uploads that did not count.
    return Link(ErrorFeedback(Identity()), DenseCodec())


def lossless_link() -> Link:
    """Make a link that sends all values unchanged, sparse or dense, whichever is smaller."""
    return Link(ErrorFeedback(Identity()), SparseOrDenseCodec())
