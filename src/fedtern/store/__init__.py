"""Durable servers and clients, which keep their state in a directory."""

from fedtern.store.directory import Store
from fedtern.store.durable import DurableClient, DurableServer
from fedtern.store.files import write_atomic

__all__ = ["DurableClient", "DurableServer", "Store", "write_atomic"]
