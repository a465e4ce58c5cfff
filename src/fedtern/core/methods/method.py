"""What a method is made of."""

from __future__ import annotations

import hashlib
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fedtern.core.codecs import Codec, DenseCodec, ExactCodec
from fedtern.core.compressors import Identity
from fedtern.core.feedback import ErrorFeedback, Feedback, Memoryless
from fedtern.core.layout import Vector
from fedtern.core.methods.aggregation import Aggregate
from fedtern.core.updates import POSITIONAL, Update

Momentum = Literal["keep", "mask", "feedback"]
Loss = Literal["none", "unbiased", "biased", "error feedback"]


@dataclass(frozen=True)
class Link:
    """One direction of traffic: what it remembers and how it is written."""

    feedback: Feedback
    codec: Codec

    @property
    def loss(self) -> Loss:
        """What becomes of what is not sent."""
        compressor = getattr(self.feedback, "compressor", None)
        if compressor is not None and compressor.loss == "none":
            return "none"
        if isinstance(self.feedback, Memoryless):
            loss: Loss = self.feedback.compressor.loss
            return loss
        return "error feedback"


@dataclass(frozen=True)
class Method:
    """Everything that the two sides of a federation have to agree on but the model.

    ``momentum`` says what becomes of a client's momentum, where it trains with any: it is kept as
    it is; or forgotten for the weights that an upload told of ("mask"); or it is the method's own
    feedback rule that keeps one, and training has none ("feedback").
    """

    name: str
    up: Link
    down: Link
    local_steps: int
    aggregate: Aggregate
    momentum: Momentum = "keep"

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

    def forget(self, velocity: Vector, update: Update) -> None:
        """Forget the momentum of what an upload told of, in place, if the method says so."""
        if self.momentum == "mask" and isinstance(update, POSITIONAL):
            velocity[update.indices] = 0

    @cached_property
    def digest(self) -> bytes:
        """Three bytes that tell two methods apart on the wire.

        They are those of the method's ``repr``: its parts must be dataclasses, or have one that
        is the same in every process.
        """
        return hashlib.sha256(repr(self).encode()).digest()[:3]


def dense_link() -> Link:
    """A link that sends all values as they are."""
    # Error feedback with nothing lost in compression: what it keeps is what got lost on the way.
    return Link(ErrorFeedback(Identity()), DenseCodec())


def lossless_link() -> Link:
    """A link that sends all values as they are, the zeros among them for free."""
    return Link(ErrorFeedback(Identity()), ExactCodec())
