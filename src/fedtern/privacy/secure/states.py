"""The states of a secure round, on the server and on a client, and all transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class ServerState(Enum):
    """State of a secure round on the server. The values are descriptions."""

    ADVERTISING = "Clients of the cohort send public keys."
    SHARING = "Clients send sealed shares of their secrets for their neighbours."
    COLLECTING = "Clients send masked uploads."
    UNMASKING = "Clients send shares that remove the masks of the sum."
    FINISHED = "The server knows the sum."
    ABANDONED = "The server knows nothing. All updates return to the clients' residuals."


class ServerEvent(Enum):
    """Event of a secure round on the server. The values are descriptions."""

    ENOUGH = "The phase ended, and enough clients took part in it."
    TOO_FEW = "The phase ended, and too few clients took part in it."
    WRONG_SHARE = "A recovered secret is not the one that its client announced."
    WRONG_SUM = "The sum is beyond the range of the clients' levels."


class ClientState(Enum):
    """State of a secure round on a client. The values are descriptions."""

    INVITED = "The client trains for this round."
    ADVERTISED = "The client has sent its public keys."
    SHARED = "The client has sent shares of its secrets. It knows positions and quantum."
    READY = "The client has the shares of its neighbours, and can mask its upload."
    UPLOADED = "The client has sent its masked upload."
    REVEALED = "The client has sent shares that remove masks. It answers no other request."


class ClientEvent(Enum):
    """Event of a secure round on a client. The values are descriptions."""

    TRAINED = "Training is complete."
    ROSTER = "The keys of the neighbours arrive."
    DELIVERY = "The shares of the neighbours arrive."
    MASKED = "The levels of the upload are masked."
    SURVIVORS = "The server says which neighbours have uploaded."


SERVER_TRANSITIONS: Mapping[ServerState, Mapping[ServerEvent, ServerState]] = MappingProxyType(
    {
        ServerState.ADVERTISING: {
            ServerEvent.ENOUGH: ServerState.SHARING,
            ServerEvent.TOO_FEW: ServerState.ABANDONED,
        },
        ServerState.SHARING: {
            ServerEvent.ENOUGH: ServerState.COLLECTING,
            ServerEvent.TOO_FEW: ServerState.ABANDONED,
        },
        ServerState.COLLECTING: {
            ServerEvent.ENOUGH: ServerState.UNMASKING,
            ServerEvent.TOO_FEW: ServerState.ABANDONED,
        },
        ServerState.UNMASKING: {
            ServerEvent.ENOUGH: ServerState.FINISHED,
            ServerEvent.TOO_FEW: ServerState.ABANDONED,
            ServerEvent.WRONG_SHARE: ServerState.ABANDONED,
            ServerEvent.WRONG_SUM: ServerState.ABANDONED,
        },
        ServerState.FINISHED: {},
        ServerState.ABANDONED: {},
    }
)

CLIENT_TRANSITIONS: Mapping[ClientState, Mapping[ClientEvent, ClientState]] = MappingProxyType(
    {
        ClientState.INVITED: {ClientEvent.TRAINED: ClientState.ADVERTISED},
        ClientState.ADVERTISED: {ClientEvent.ROSTER: ClientState.SHARED},
        ClientState.SHARED: {ClientEvent.DELIVERY: ClientState.READY},
        ClientState.READY: {ClientEvent.MASKED: ClientState.UPLOADED},
        ClientState.UPLOADED: {ClientEvent.SURVIVORS: ClientState.REVEALED},
        ClientState.REVEALED: {},
    }
)
