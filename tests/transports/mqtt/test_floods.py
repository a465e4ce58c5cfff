"""Floods and silent clients on a real broker: rounds continue, and no update is lost."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from brokers import MOSQUITTO
from test_broker import QUICK, Federation, run
from upload_audit import FEDERATION, TERMS, trainer

from fedtern.transports.mqtt import Limits, RoundPolicy, Sample
from fedtern.transports.mqtt.buffered_socket import BufferedSocket
from fedtern.transports.mqtt.topics import Topics

aiomqtt = pytest.importorskip("aiomqtt")

ROOT = Path(__file__).parents[3]
TOPICS = Topics(FEDERATION)
FLOODER = 9
LARGEST = Limits().max_upload_bytes(TERMS.layout)


def packet(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes([first, len(body)]) + body


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


async def flood(port: int, kinds: tuple[str, ...], client: int, count: int | None = None) -> None:
    """Publish packets of 17 bytes, or of one byte on ``alive``, as fast as the broker reads."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(packet(0x10, text("MQTT") + b"\4\2\0\0" + text(f"flood-{client}")))
    sizes = {"alive": 1}
    bundle = b"".join(
        packet(0x30, text(TOPICS.of(kind, client)) + bytes([1] * sizes.get(kind, 17)))
        for kind in kinds
    )
    try:
        while count is None or count > 0:
            writer.write(bundle * 50)
            await writer.drain()
            await asyncio.sleep(0)  # drain() alone may let no other task run
            count = None if count is None else count - 50
    finally:
        if count is None:
            writer.transport.abort()  # a busy broker would read the rest for seconds
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize("kinds", [("up",), ("ask",), ("alive",)], ids=lambda kinds: kinds[0])
def test_a_client_that_floods_is_muted_and_rounds_continue(mosquitto, kinds):
    async def scenario():
        federation = Federation(
            mosquitto.port, RoundPolicy(Sample(size=3), rounds=30, min_clients=3, **QUICK)
        )
        federation.serve()
        for i in range(3):
            federation.join(i, train=slow_trainer(i))
        await federation.until(3)
        flooding = asyncio.create_task(flood(mosquitto.port, kinds, FLOODER))
        await federation.end()
        flooding.cancel()
        with suppress(asyncio.CancelledError):
            await flooding
        assert federation.stats.floods >= 1
        assert federation.stats.connections == 1

    run(scenario())


def test_the_broker_does_not_forward_messages_longer_than_the_announced_packet_size(mosquitto):
    async def scenario():
        federation = Federation(
            mosquitto.port, RoundPolicy(Sample(size=2), rounds=10, min_clients=2, **QUICK)
        )
        federation.serve()
        async with aiomqtt.Client("127.0.0.1", mosquitto.port) as client:
            while not federation.stats.connections:
                await asyncio.sleep(0.01)
            for _ in range(200):
                await client.publish(TOPICS.of("up", FLOODER), bytes(LARGEST + 1000), qos=1)
            await client.publish(TOPICS.of("up", FLOODER), bytes(LARGEST + 1), qos=1)
            while not federation.stats.refused["size"]:
                await asyncio.sleep(0.01)
        for i in range(2):
            federation.join(i)
        await federation.end()
        # Only the message that fits into a packet arrived.
        assert federation.stats.refused["size"] == 1
        assert federation.stats.dropped_bytes == LARGEST + 1

    run(scenario())


def test_a_client_that_was_muted_takes_part_again(mosquitto, monkeypatch):
    monkeypatch.setattr("fedtern.transports.mqtt.admission._FIRST_MUTE", 0.5)

    async def scenario():
        federation = Federation(mosquitto.port, RoundPolicy(min_clients=2, rounds=400, **QUICK))
        federation.serve()
        for i in range(2):
            federation.join(i, train=slow_trainer(i))
        await federation.until(3)
        await flood(mosquitto.port, ("ask",), client=1, count=400)
        while not federation.stats.floods:
            await asyncio.sleep(0.01)
        while federation.stats.muted:
            await asyncio.sleep(0.01)
        counted = federation.stats.counted
        rounds = federation.stats.rounds
        while federation.stats.counted - counted < federation.stats.rounds - rounds + 5:
            await asyncio.sleep(0.01)  # both clients are counted
        for i in range(2):
            await federation.leave(i)
        federation.tasks["server"].cancel()
        with suppress(asyncio.CancelledError):
            await federation.tasks["server"]

    run(scenario())


def slow_trainer(i: int):
    learn = trainer(i)

    async def train(weights, round):
        await asyncio.sleep(0.02)
        return learn(weights, round)

    return train


def test_a_buffered_socket_reads_once_for_each_event_and_loses_no_byte():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        buffered = BufferedSocket(ours)
        with pytest.raises(BlockingIOError):
            buffered.recv(1)
        assert buffered.pending() == 0
        data = bytes(range(256)) * 200
        theirs.sendall(data)
        theirs.close()
        found = b""
        events = 0
        while True:
            events += 1
            try:
                while part := buffered.recv(3):
                    found += part
                break  # the other side closed the connection
            except BlockingIOError:
                assert buffered.pending() == 0  # the end of an event
        assert found == data
        assert events > len(data) // (8 << 10)


def run_benchmark(*arguments: object) -> str:
    if MOSQUITTO is None:
        pytest.skip("NO MQTT BROKER: install mosquitto, or this shows nothing")
    command = [sys.executable, "benchmarks/flood.py", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=True
    )
    print(done.stdout)
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("size", [1_000_000, 20])
def test_a_flood_of_three_connections_costs_little_memory_and_few_rounds(size):
    """The best of four attempts, because the machine may be busy."""
    ratios = []
    for _ in range(4):
        output = run_benchmark("flood", "--sizes", size, "--repeats", 1)
        found = json.loads(output.splitlines()[0])
        assert found["growth_mib"] < 64
        assert found["connections"] == 1
        ratios.append(found["ratio"])
        if ratios[-1] >= 0.8:
            break
    assert max(ratios) >= 0.8


@pytest.mark.slow
def test_a_silent_client_costs_no_more_than_its_share_of_deadlines():
    output = run_benchmark("silent", "--repeats", 1)
    (extra,) = re.findall(r"([-0-9.]+) deadlines more", output)
    assert float(extra) <= 1.1
