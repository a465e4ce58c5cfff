"""Many light clients in one process: real connections, a real codec, no training.

`python benchmarks/mqtt_load.py PORT FIRST COUNT SIZE` runs clients FIRST to FIRST + COUNT - 1. Each
has its own connection and residual. They share the model, which is the same for all. This file
implements the part of MQTT 5 that such a device needs.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import sys
from functools import partial

import numpy as np

from fedtern import Client, stc
from fedtern.core.layout import Layout
from fedtern.core.protocol import Broadcast, CohortNotice, Terms, Uplink
from fedtern.core.wire import varint
from fedtern.transports.mqtt.messages import Announcement, write_upload
from fedtern.transports.mqtt.topics import PRESENT, Topics

FEDERATION = "load"
METHOD = stc()
TOPICS = Topics(FEDERATION)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + varint(len(body)) + body


def connect(name: str, will: str) -> bytes:
    # Flags: clean start, a retained will with QoS 0. Keep-alive 0: off.
    return packet(
        0x10, text("MQTT") + b"\x05\x26\0\0\0" + text(name) + b"\0" + text(will) + b"\0\0"
    )


def subscribe(*topics: str) -> bytes:
    return packet(0x82, b"\0\1\0" + b"".join(text(topic) + b"\0" for topic in topics))


def publish(topic: str, payload: bytes, *, number: int = 0, retain: bool = False) -> bytes:
    """Return a PUBLISH packet: QoS 1 if it has a number, else QoS 0."""
    head = text(topic) + (struct.pack(">H", number) if number else b"") + b"\0"
    return packet(0x30 | (2 if number else 0) | retain, head + payload)


class Fleet:
    """State that the clients of this process share."""

    def __init__(self, size: int) -> None:
        layout = Layout.flat(size)
        self.terms = Terms(layout, METHOD)
        self.witness = Client((1 << 64) - 1, METHOD, weights=np.zeros(size), federation=FEDERATION)
        self.delta = np.random.default_rng(0).standard_normal(size, np.float32)
        self.uplinks: dict[int, Uplink] = {}
        self.waiting: set[int] = set()  # clients with an unacknowledged upload
        self.news = b""
        self.ended = False
        self.call: CohortNotice | None = None

    def heard(self, payload: bytes) -> None:
        """Process an announcement once, for all clients of this process."""
        if payload == self.news:
            return
        news = Announcement.read(payload)
        self.news = payload
        self.ended = news.ended
        self.call = CohortNotice.open(news.message, self.terms)
        if self.call.header.round > self.witness.round:
            broadcast = Broadcast.open(news.message, self.terms)
            for i in self.waiting:
                self.uplinks[i].settle(i in broadcast.counted)
            self.waiting.clear()
            self.witness.receive(news.message)

    def upload(self, i: int) -> bytes | None:
        """Return the upload of client ``i``, or None if it is not in the cohort."""
        if self.ended or self.call is None:
            return None
        if self.call.cohort is not None and i not in self.call.cohort:
            return None
        uplink = self.uplinks.setdefault(i, Uplink(i, self.terms))
        if uplink.pending is None:
            update, memory = uplink.compress(self.delta.copy(), self.witness.round)
            uplink.seal(update, memory, self.witness.stamp, self.witness.round)
            self.waiting.add(i)
        assert uplink.pending is not None  # sealed above
        return write_upload(1, uplink.pending)


class Light(asyncio.Protocol):
    """Connection of one client."""

    def __init__(self, fleet: Fleet, i: int, ended: asyncio.Event) -> None:
        self.fleet = fleet
        self.i = i
        self.ended = ended
        self.buffer = bytearray()
        self.number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        alive = TOPICS.of("alive", self.i)
        transport.write(connect(f"light-{self.i}", alive))
        transport.write(publish(alive, PRESENT, retain=True))
        transport.write(subscribe(TOPICS.round, TOPICS.of("down", self.i)))

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (found := self._packet()) is not None:
            first, body = found
            if first >> 4 == 3:
                length = struct.unpack_from(">H", body)[0]
                if body[2 : 2 + length].endswith(b"/round"):
                    self._announced(body[2 + length + 1 :])  # there are no properties

    def _packet(self) -> tuple[int, bytes] | None:
        length = shift = 0
        for at in range(1, min(len(self.buffer), 5)):
            length |= (self.buffer[at] & 127) << shift
            shift += 7
            if self.buffer[at] < 128:
                break
        else:
            return None
        end = at + 1 + length
        if len(self.buffer) < end:
            return None
        first = self.buffer[0]
        body = bytes(self.buffer[at + 1 : end])
        del self.buffer[:end]
        return first, body

    def _announced(self, payload: bytes) -> None:
        self.fleet.heard(payload)
        if self.fleet.ended:
            self.ended.set()
        elif (data := self.fleet.upload(self.i)) is not None:
            self.number = self.number % 65535 + 1
            self.transport.write(publish(TOPICS.of("up", self.i), data, number=self.number))


async def main(port: int, first: int, count: int, size: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 100)), hard))
    fleet = Fleet(size)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for i in range(first, first + count):
        await loop.create_connection(partial(Light, fleet, i, ended), "127.0.0.1", port)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
