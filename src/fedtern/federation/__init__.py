"""Parts that all transports share: round policy, presence of clients, and the round controller."""

from fedtern.federation.interfaces import ClientLike, ServerLike
from fedtern.federation.presence import Presence
from fedtern.federation.round_controller import (
    RoundController,
    RoundFinished,
    RoundStarted,
    RoundState,
)
from fedtern.federation.round_policy import (
    AllClients,
    CohortSelection,
    RoundPolicy,
    Sample,
    Scheduled,
)

__all__ = [
    "AllClients",
    "ClientLike",
    "CohortSelection",
    "Presence",
    "RoundController",
    "RoundFinished",
    "RoundPolicy",
    "RoundStarted",
    "RoundState",
    "Sample",
    "Scheduled",
    "ServerLike",
]
