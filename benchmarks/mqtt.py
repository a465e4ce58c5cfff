"""Federations on a real Mosquitto: rounds per second, bytes on the wire, memory over many rounds.

`python benchmarks/mqtt.py` runs the broker, the server and all clients on this machine. It measures
speed and memory with light clients (``mqtt_load.py``), and bytes with ``join``.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedtern import Client, Server, stc
from fedtern.core.protocol import Sent
from fedtern.transports.mqtt import (
    AllClients,
    Broker,
    MqttServer,
    RoundPolicy,
    Sample,
    Stats,
    join,
    serve,
)
from fedtern.transports.mqtt.byte_counter import count_bytes
from fedtern.transports.mqtt.local_broker import find_mosquitto, run_mosquitto
from mqtt_load import FEDERATION, METHOD
from rows import VGG11S, Options, Row, Rows, Target

LOGISTIC = 7_850


@dataclass(frozen=True)
class Load:
    """Measurements of a server with many clients."""

    clients: int
    cohort: int
    size: int
    rounds: int
    rounds_per_second: float
    server_ms_per_round: float  # CPU time
    mib: list[float]  # memory of the server, ten times during the run
    present: int
    counted: int
    refused: dict[str, int]
    seconds: dict[str, float]


@contextmanager
def generator(port: int, clients: int, size: int, processes: int) -> Iterator[None]:
    """Run light clients in a few processes until the block ends."""
    script = str(Path(__file__).with_name("mqtt_load.py"))
    share = -(-clients // processes)
    running = []
    try:
        for first in range(0, clients, share):
            own = (port, first, min(share, clients - first), size)
            running.append(subprocess.Popen([sys.executable, script, *map(str, own)]))
        yield
    finally:
        for process in running:
            process.terminate()
            process.wait()


def load(clients: int, cohort: int, rounds: int, size: int = LOGISTIC, processes: int = 2) -> Load:
    """Run rounds at full speed; the first tenth is not timed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, clients + 200)), hard))
    stats = Stats()
    marks = []

    def on_round(mqtt_server: MqttServer) -> None:
        if mqtt_server.server.round % (rounds // 10) == 0:
            marks.append((time.perf_counter(), time.process_time(), _mib()))

    server = Server(np.zeros(size), METHOD, federation=FEDERATION)
    cohorts = Sample(size=cohort) if cohort < clients else AllClients()
    policy = RoundPolicy(cohorts, deadline=60, min_clients=clients, rounds=rounds)
    with run_mosquitto() as port, generator(port, clients, size, processes):
        place = Broker("127.0.0.1", port)
        asyncio.run(serve(server, place, policy, stats=stats, on_round=on_round, linger=0))
    (begin, spent, _) = marks[0]
    (end, all_spent, _) = marks[-1]
    timed = rounds - rounds // 10
    return Load(
        clients,
        cohort,
        size,
        rounds,
        timed / (end - begin),
        1e3 * (all_spent - spent) / timed,
        [round(mib, 1) for _, _, mib in marks],
        stats.present,
        stats.counted,
        stats.refused,
        {name: round(seconds, 3) for name, seconds in stats.seconds.items()},
    )


def _mib() -> float:
    # Exclude free memory that the allocator caches: it varies by MiB.
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@dataclass(frozen=True)
class Traffic:
    """Bytes on the sockets of a federation, connections included, per client and round."""

    clients: int
    rounds: int
    size: int
    up: float
    down: float
    overhead: float  # bytes up and down that are neither upload nor broadcast

    @property
    def ratios(self) -> tuple[float, float]:
        return 4 * self.size / self.up, 4 * self.size / self.down


async def traffic(port: int, clients: int = 10, rounds: int = 20, size: int = VGG11S) -> Traffic:
    """Count bytes with a proxy between the clients and the broker; all clients in every round."""
    method = stc()
    rng = np.random.default_rng(0)
    messages = 0
    server = Server(np.zeros(size), method, federation="wire")

    def uploaded(sent: Sent) -> None:
        nonlocal messages
        messages += len(sent.data)

    def on_round(mqtt_server: MqttServer) -> None:
        nonlocal messages
        data = server.newest_broadcast(server.round - 1)
        messages += clients * len(data or b"")

    def train(weights: np.ndarray, round: int) -> np.ndarray:
        return weights + rng.standard_normal(size, np.float32) / 100

    policy = RoundPolicy(AllClients(), deadline=120, min_clients=clients, rounds=rounds, grace=0.2)
    async with count_bytes(port) as wire:
        own = Broker("127.0.0.1", port)
        through = Broker("127.0.0.1", wire.port)
        tasks = [serve(server, own, policy, on_round=on_round)]
        for i in range(clients):
            client = Client(i, method, weights=np.zeros(size), federation="wire")
            tasks.append(join(client, train, through, on_upload=uploaded))
        await asyncio.gather(*tasks)
        turns = clients * rounds
        total = wire.up + wire.down
        return Traffic(
            clients, rounds, size, wire.up / turns, wire.down / turns, (total - messages) / turns
        )


def rows(options: Options) -> Rows:
    """Rows of ``fedtern bench mqtt``."""
    if find_mosquitto() is None:
        yield Row("mqtt", note="needs mosquitto, which is not installed")
        return
    clients, cohort = (100, 10) if options.quick else (1000, 100)
    found = load(clients, cohort, 20 if options.quick else 100)
    own = f"{found.server_ms_per_round:.0f} ms of CPU time on the server"
    note = f"{clients:,} connected, cohort {cohort}; {own}"
    target = Target(">=", 5.0, "ours")
    yield Row("rounds", "", found.rounds_per_second, None, "rounds/s", target, note)
    with run_mosquitto() as port:
        bytes_seen = asyncio.run(traffic(port, 3 if options.quick else 10))
    dense = 4.0 * VGG11S
    peer = "uncompressed training"
    fewer = Target("<=", 1 / 1000)
    yield Row("wire, up", peer, bytes_seen.up, dense, "bytes", fewer)
    yield Row("wire, down", peer, bytes_seen.down, dense, "bytes", fewer)
    most = Target("<=", 150.0, "ours")
    yield Row(
        "wire, overhead", "", bytes_seen.overhead, None, "bytes", most, "per client and round"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["load", "memory", "wire"], nargs="?", default="load")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--cohort", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.what == "wire":
        with run_mosquitto() as port:
            seen = asyncio.run(
                traffic(port, given.clients or 10, given.rounds or 20, given.size or VGG11S)
            )
        print(json.dumps({**asdict(seen), "times fewer": seen.ratios}))
        return
    few = given.what == "memory"
    clients = given.clients or (10 if few else 1000)
    cohort = given.cohort or (10 if few else 100)
    rounds = given.rounds or (10_000 if few else 100)
    processes = 1 if few else given.processes
    print(json.dumps(asdict(load(clients, cohort, rounds, given.size or LOGISTIC, processes))))


if __name__ == "__main__":
    main()
