"""The only part of the core that touches a disk."""

from fedtern.store.directory import Store
from fedtern.store.durable import DurableClient, DurableServer
from fedtern.store.files import write_atomic

__all__ = ["DurableClient", "DurableServer", "Store", "write_atomic"]
