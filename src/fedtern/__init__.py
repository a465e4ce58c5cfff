"""Federated learning in a thousandth of the bandwidth."""

from fedtern.arrays import compress, decompress
from fedtern.errors import (
    DecodeError,
    DuplicateUpload,
    FedternError,
    LateUpload,
    LocalProtocolError,
    MissedRounds,
    NonFiniteError,
    RemoteProtocolError,
    StoreError,
)
from fedtern.layout import Layout
from fedtern.methods import METHODS, Link, Method, fedavg, sgd, signsgd, stc, topk
from fedtern.protocol import Broadcast, Client, Server
from fedtern.snapshot import Snapshot
from fedtern.store import DurableClient, DurableServer, Store

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Broadcast",
    "Client",
    "DecodeError",
    "DuplicateUpload",
    "DurableClient",
    "DurableServer",
    "FedternError",
    "LateUpload",
    "Layout",
    "Link",
    "LocalProtocolError",
    "Method",
    "MissedRounds",
    "NonFiniteError",
    "RemoteProtocolError",
    "Server",
    "Snapshot",
    "Store",
    "StoreError",
    "compress",
    "decompress",
    "fedavg",
    "sgd",
    "signsgd",
    "stc",
    "topk",
]
