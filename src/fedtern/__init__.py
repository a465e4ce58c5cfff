"""Federated learning in a thousandth of the bandwidth."""

from typing import TYPE_CHECKING

from fedtern.core.arrays import compress, decompress
from fedtern.core.errors import (
    DataError,
    DecodeError,
    DuplicateUpload,
    FedternError,
    LateUpload,
    LocalProtocolError,
    MissedRounds,
    MissingDataError,
    MissingExtraError,
    NonFiniteError,
    RemoteProtocolError,
    StoreError,
)
from fedtern.core.extras import require
from fedtern.core.layout import Carried, Layout
from fedtern.core.methods import (
    METHODS,
    Link,
    Method,
    fedavg,
    register_method,
    sgd,
    signsgd,
    stc,
    topk,
)
from fedtern.core.protocol import Broadcast, Client, Server
from fedtern.core.snapshot import Snapshot
from fedtern.core.template import Template
from fedtern.data.environment import Environment
from fedtern.store import DurableClient, DurableServer, Store

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedtern.transports.local.simulation import simulate


def __getattr__(name: str) -> object:
    """Import ``simulate`` on first use: it needs torch, which takes seconds to import."""
    if name == "simulate":
        try:
            require("torch", "torch", "fedtern.simulate")
        except MissingExtraError as error:
            return _unavailable(str(error))
        from fedtern.transports.local.simulation import simulate

        return simulate
    raise AttributeError(f"module 'fedtern' has no attribute {name!r}")


def _unavailable(message: str) -> object:
    """Return a function that raises when it is called.

    Without torch, ``from fedtern import *`` and ``hasattr`` should still work.
    """

    def simulate(*_arguments: object, **_options: object) -> None:
        raise MissingExtraError(message)

    return simulate


__all__ = [
    "METHODS",
    "Broadcast",
    "Carried",
    "Client",
    "DataError",
    "DecodeError",
    "DuplicateUpload",
    "DurableClient",
    "DurableServer",
    "Environment",
    "FedternError",
    "LateUpload",
    "Layout",
    "Link",
    "LocalProtocolError",
    "Method",
    "MissedRounds",
    "MissingDataError",
    "MissingExtraError",
    "NonFiniteError",
    "RemoteProtocolError",
    "Server",
    "Snapshot",
    "Store",
    "StoreError",
    "Template",
    "compress",
    "decompress",
    "fedavg",
    "register_method",
    "sgd",
    "signsgd",
    "simulate",
    "stc",
    "topk",
]
