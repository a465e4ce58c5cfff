"""What goes over the wire, read off the sockets: a proxy that counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

_CHUNK = 1 << 16


@dataclass
class ByteCounter:
    """Bytes that clients have sent up and been sent down, everything above TCP included."""

    port: int = 0
    up: int = 0
    down: int = 0
    connections: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set, repr=False)
    tasks: set[asyncio.Future[None]] = field(default_factory=set, repr=False)


@asynccontextmanager
async def counting(port: int, host: str = "127.0.0.1") -> AsyncIterator[ByteCounter]:
    """Listen on a free port of this machine and pass everything on, counted, to another."""
    wire = ByteCounter()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                setattr(wire, way, getattr(wire, way) + len(data))
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()  # as the broker itself would have
            return
        wire.connections += 1
        both = (carry(reader, outer, "up"), carry(inner, writer, "down"))
        tasks = {asyncio.ensure_future(one) for one in both}
        wire.writers |= {writer, outer}
        wire.tasks |= tasks
        await asyncio.wait(tasks)
        wire.writers -= {writer, outer}
        wire.tasks -= tasks

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        for writer in wire.writers:
            writer.close()
        if wire.tasks:
            await asyncio.wait(wire.tasks, timeout=5)
            await asyncio.sleep(0)  # for those who wait for them
