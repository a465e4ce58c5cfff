"""The only part of the core that touches a disk."""

from fedtern.store.directory import Store
from fedtern.store.durable import DurableClient, DurableServer

__all__ = ["DurableClient", "DurableServer", "Store"]
