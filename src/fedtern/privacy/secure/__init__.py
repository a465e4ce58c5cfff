"""Secure aggregation: the server learns the sum of the uploads of a round, and nothing else.

``SecureServer`` and ``SecureClient`` are the two sides of one round (Bonawitz et al., 2017). The
sum goes to ``Server.finish_round(delta=..., counted=...)``. docs/how-to/secure-aggregation.md says
what is revealed, and to whom.
"""

from __future__ import annotations

from fedtern.privacy.secure.client import Identity, SecureClient, clipped_level
from fedtern.privacy.secure.crypto import public_signing_key
from fedtern.privacy.secure.graph import MIN_CLIENTS
from fedtern.privacy.secure.messages import Context
from fedtern.privacy.secure.method import (
    FIRST_QUANTUM,
    check_secure_terms,
    next_quantum,
    secure_topk,
    shared_positions_of,
)
from fedtern.privacy.secure.server import SecureServer, SecureSum
from fedtern.privacy.secure.states import ClientState, ServerState

__all__ = [
    "FIRST_QUANTUM",
    "MIN_CLIENTS",
    "ClientState",
    "Context",
    "Identity",
    "SecureClient",
    "SecureServer",
    "SecureSum",
    "ServerState",
    "check_secure_terms",
    "clipped_level",
    "next_quantum",
    "public_signing_key",
    "secure_topk",
    "shared_positions_of",
]
