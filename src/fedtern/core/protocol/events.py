"""What happened: the typed results of every call to a ``Server`` or a ``Client``.

A caller learns everything from these records. No engine has to parse a message a second time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from fedtern.core.updates import Update


class How(enum.Enum):
    """How a message takes a client from one round to a later one."""

    NOTHING = "nothing new"
    NOTICE = "notice of a cohort"
    BROADCAST = "broadcast"
    REPLAY = "replayed broadcasts"
    SUM = "sum of broadcasts"
    MODEL = "whole model"


@dataclass(frozen=True, eq=False)
class Sent:
    """An upload that a client has made, and the update in it."""

    round: int
    data: bytes = field(repr=False)
    update: Update = field(repr=False)


@dataclass(frozen=True, eq=False)
class Accepted:
    """An upload that a server has accepted for its current round."""

    client_id: int
    round: int
    num_examples: int
    data: bytes = field(repr=False)
    update: Update = field(repr=False)


@dataclass(frozen=True)
class CatchUp:
    """A message that takes one client from round ``since`` to round ``round``."""

    since: int
    round: int
    how: How
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Received:
    """What a message from the server did to a client.

    Attributes:
        since: the client's round before the message.
        round: the client's round after it.
        leads_to: the round that the message leads to; less than ``round`` for an old message.
        how: how the client advanced; ``How.NOTHING`` if the message was already known.
        counted: whether the pending upload counted; None if no upload was pending or the message
            does not settle it.
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
