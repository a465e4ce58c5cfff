"""A TCP proxy that counts the bytes of all connections through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

_READ_BYTES = 1 << 16


@dataclass
class ByteCounter:
    """Bytes from clients (up) and to clients (down), including everything above TCP."""

    port: int = 0
    up: int = 0
    down: int = 0
    connections: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set, repr=False)
    tasks: set[asyncio.Future[None]] = field(default_factory=set, repr=False)

    def add(self, direction: Literal["up", "down"], size: int) -> None:
        """Count bytes in one direction."""
        if direction == "up":
            self.up += size
        else:
            self.down += size


@asynccontextmanager
async def count_bytes(port: int, host: str = "127.0.0.1") -> AsyncIterator[ByteCounter]:
    """Listen on a free port of this machine and forward all connections to another port."""
    counter = ByteCounter()

    async def forward(
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Literal["up", "down"],
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                counter.add(direction, len(data))
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(
        client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter
    ) -> None:
        try:
            broker_reader, broker_writer = await asyncio.open_connection(host, port)
        except OSError:
            client_writer.close()  # like a broker that is down
            return
        counter.connections += 1
        tasks = {
            asyncio.ensure_future(forward(client_reader, broker_writer, "up")),
            asyncio.ensure_future(forward(broker_reader, client_writer, "down")),
        }
        writers = {client_writer, broker_writer}
        counter.writers |= writers
        counter.tasks |= tasks
        await asyncio.wait(tasks)
        counter.writers -= writers
        counter.tasks -= tasks

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    counter.port = server.sockets[0].getsockname()[1]
    try:
        yield counter
    finally:
        server.close()
        for writer in counter.writers:
            writer.close()
        if counter.tasks:
            await asyncio.wait(counter.tasks, timeout=5)
            await asyncio.sleep(0)  # lets accept() return
