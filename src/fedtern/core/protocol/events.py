"""Events: typed results of the calls to ``Server`` and ``Client``.

They contain all that a caller needs to know, so that no engine parses a message a second time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property

from fedtern.core.carried import NO_VALUES, Values
from fedtern.core.updates import Update, max_magnitude, norm


class How(enum.Enum):
    """How a message takes a client from one round to a later one."""

    NOTHING = "nothing new"
    NOTICE = "notice of a cohort"
    BROADCAST = "broadcast"
    REPLAY = "replayed broadcasts"
    SUM = "sum of broadcasts"
    MODEL = "whole model"
    START = "initial model and broadcasts"


@dataclass(frozen=True, eq=False)
class Sent:
    """An upload that a client has made.

    Attributes:
        round: the round of the upload.
        data: the message.
        update: the update in it.

    """

    round: int
    data: bytes = field(repr=False)
    update: Update = field(repr=False)


@dataclass(frozen=True, eq=False)
class Accepted:
    """An upload that a server has accepted.

    Attributes:
        client_id: the client that sent it.
        round: the round of the upload.
        num_examples: the number of examples it was trained on, or another weight.
        data: the message.
        update: the update in it.
        carried: the carried tensors that training has changed.

    """

    client_id: int
    round: int
    num_examples: float
    data: bytes = field(repr=False)
    update: Update = field(repr=False)
    carried: Values = field(default_factory=lambda: NO_VALUES, repr=False)

    @cached_property
    def norm(self) -> float:
        """The Euclidean norm of the update."""
        return norm(self.update)

    @cached_property
    def peak(self) -> float:
        """The largest magnitude in the update."""
        return max_magnitude(self.update)


@dataclass(frozen=True)
class CatchUp:
    """A message that takes one client from an earlier round to the server's round.

    Attributes:
        since: the client's round; -1 for a client without weights.
        round: the server's round.
        how: the kind of the message.
        data: the message.

    """

    since: int
    round: int
    how: How
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Received:
    """The effect of a message from the server on a client.

    Attributes:
        since: the client's round before the message.
        round: the client's round after it.
        leads_to: the round that the message leads to; less than ``round`` for an old message.
        how: how the client advanced; ``How.NOTHING`` if the message was already known.
        counted: whether the pending upload was counted; None if no upload was pending or the
            message does not say.
        invited: whether the client may upload to round ``leads_to``; None if the message does not
            say (sums and models).
        cohort: every client that may upload to round ``leads_to``; None if all may, or if the
            message does not say.

    """

    since: int
    round: int
    leads_to: int
    how: How
    counted: bool | None = None
    invited: bool | None = None
    cohort: frozenset[int] | None = None

    @property
    def is_new(self) -> bool:
        """Whether the client advanced by at least one round."""
        return self.round > self.since
