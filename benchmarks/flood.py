"""A federation under a flood, and with a client that never uploads, on a real Mosquitto.

`python benchmarks/flood.py flood` runs a broker with the quotas, passwords and ACL of
``examples/mqtt`` (without TLS), a server, honest clients, and then a flood: one account, three
connections, as many messages as the broker takes. Each connection reconnects at once when the
broker closes it. All processes share this machine. The honest rate during the flood is compared
with the rate before and after it, in the same run.

`python benchmarks/flood.py silent` compares the time of the first ten rounds with and without a
client that reports its presence in every round and never uploads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import random
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from fedtern import Client, Server, stc
from fedtern.transports.mqtt import Broker, MqttServer, RoundPolicy, Sample, Stats, join, serve
from fedtern.transports.mqtt.local_broker import find_mosquitto
from fedtern.transports.mqtt.topics import PRESENT, Topics
from mqtt_load import packet, publish, text

EXAMPLES = Path(__file__).parents[1] / "examples" / "mqtt"
FEDERATION = "wards"
TOPICS = Topics(FEDERATION)
METHOD = stc()
SIZE = 7_850
SPAWN = multiprocessing.get_context("spawn")


def password(user: str) -> str:
    return f"secret-{user}"


def broker_of(port: int, user: str) -> Broker:
    return Broker("127.0.0.1", port, username=user, password=password(user))


def example_config(directory: Path, port: int, users: list[str]) -> Path:
    """Write the example configuration with other paths and without TLS, and return its path."""
    passwords = directory / "passwords"
    passwords.touch()
    tool = shutil.which("mosquitto_passwd") or "mosquitto_passwd"
    for user in users:
        subprocess.run([tool, "-b", passwords, user, password(user)], check=True)
    shutil.copy(EXAMPLES / "acl", directory / "acl")
    tls = ("cafile", "certfile", "keyfile")
    lines = [
        line
        for line in (EXAMPLES / "mosquitto.conf").read_text().splitlines()
        if not line.startswith(tls)
    ]
    config = "\n".join(lines).replace("listener 8883", f"listener {port} 127.0.0.1")
    config = config.replace("/etc/mosquitto/fedtern", str(directory))
    config = config.replace("/var/lib/mosquitto/", f"{directory}/")
    path = directory / "mosquitto.conf"
    path.write_text(config + ("\nuser root\n" if os.getuid() == 0 else "\n"))
    return path


@contextmanager
def run_example_broker(users: list[str], without: str | None = None) -> Iterator[tuple[int, int]]:
    """Run Mosquitto with the example configuration, and yield its port and its process id."""
    program = find_mosquitto()
    if program is None:
        sys.exit("this benchmark needs mosquitto")
    port = random.SystemRandom().randrange(20000, 32000)
    with tempfile.TemporaryDirectory() as name:
        path = example_config(Path(name), port, users)
        if without is not None:
            path.write_text(path.read_text().replace(f"\n{without} ", f"\n#{without} "))
        process = subprocess.Popen(
            [program, "-c", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + 10
            while time.monotonic() < end:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.02)
            yield port, process.pid
        finally:
            process.terminate()
            process.wait()


def run_server(port: int, policy: RoundPolicy, rounds: Any, results: Pipe) -> None:
    """Serve until the parent asks for the results."""
    logging.disable()
    stats = Stats()

    def on_round(mqtt_server: MqttServer) -> None:
        rounds.value = mqtt_server.server.round

    async def main() -> None:
        server = Server(np.zeros(SIZE), METHOD, federation=FEDERATION)
        serving = asyncio.create_task(
            serve(
                server, broker_of(port, "server"), policy, stats=stats, on_round=on_round, linger=0
            )
        )
        while not results.poll() and not serving.done():
            await asyncio.sleep(0.05)
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving

    asyncio.run(main())
    results.send(
        {
            "refused": {reason: n for reason, n in stats.refused.items() if n},
            "floods": stats.floods,
            "connections": stats.connections,
            "void": stats.void,
            "counted": stats.counted,
            "waiting": stats.seconds["waiting"],
        }
    )


def run_clients(port: int, clients: list[int], seconds: float) -> None:
    """Run honest clients whose training takes some time on another machine."""
    rng = np.random.default_rng(0)
    delta = rng.standard_normal(SIZE, np.float32) / 100

    async def train(weights: np.ndarray, round: int) -> np.ndarray:
        await asyncio.sleep(seconds)
        return weights + delta

    async def main() -> None:
        start = np.zeros(SIZE)
        await asyncio.gather(
            *(
                join(
                    Client(i, METHOD, weights=start, federation=FEDERATION),
                    train,
                    broker_of(port, str(i)),
                )
                for i in clients
            )
        )

    asyncio.run(main())


def connect_packet(user: str, name: str) -> bytes:
    # Flags: clean start, user name, password. Keep-alive 0: off.
    body = text("MQTT") + b"\x05\xc2\0\0\0" + text(name) + text(user) + text(password(user))
    return packet(0x10, body)


def run_flood(port: int, user: str, size: int, sent: Any, connects: Any) -> None:
    """Send as many messages of a size as the broker takes, until this process is terminated."""
    topics = [
        TOPICS.of(kind, user) for kind in (("up",) if size > 1000 else ("up", "ask", "alive"))
    ]
    messages = [publish(topic, os.urandom(size)) for topic in topics]
    bundle = b"".join(messages * max(1, 60_000 // (size * len(messages))))

    def flood(number: int) -> None:
        while True:
            with suppress(OSError), socket.socket() as link:
                # A small buffer: this process is to wait for the broker, not to fill the kernel's
                # memory on each new connection.
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
                link.connect(("127.0.0.1", port))
                link.sendall(connect_packet(user, f"flood-{number}"))
                link.recv(64)
                connects.value += 1
                while True:
                    link.sendall(bundle)
                    sent[number] += len(bundle)

    threads = [threading.Thread(target=flood, args=(i,), daemon=True) for i in range(len(sent))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Phase:
    """A part of a run."""

    rounds_per_second: float
    server_mib: float  # largest
    broker_mib: float  # largest
    server_cpu: float  # cores
    broker_cpu: float  # cores


def watch(seconds: float, rounds: Any, server: int, broker: int) -> Phase:
    """Measure for some time."""
    begin, first = time.monotonic(), rounds.value
    cpu = cpu_seconds(server), cpu_seconds(broker)
    server_mib = broker_mib = 0.0
    while (spent := time.monotonic() - begin) < seconds:
        server_mib = max(server_mib, mib(server))
        broker_mib = max(broker_mib, mib(broker))
        time.sleep(0.05)
    return Phase(
        round((rounds.value - first) / spent, 2),
        round(server_mib, 1),
        round(broker_mib, 1),
        round((cpu_seconds(server) - cpu[0]) / spent, 2),
        round((cpu_seconds(broker) - cpu[1]) / spent, 2),
    )


def in_own_session(target: Any, arguments: tuple[Any, ...]) -> None:
    # Linux shares CPU time between sessions. So each program has its own share, as a service has.
    os.setsid()
    target(*arguments)


@contextmanager
def running(target: Any, *arguments: Any) -> Iterator[BaseProcess]:
    process = SPAWN.Process(target=in_own_session, args=(target, arguments), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join()


def flood(
    size: int, connections: int, clients: int, training: float, seconds: float, without: str | None
) -> dict[str, Any]:
    """Measure a federation before, during and after a flood by the account after the clients."""
    flooder = str(clients)
    users = ["server", *map(str, range(clients + 1))]
    policy = RoundPolicy(Sample(fraction=1.0), deadline=5.0, min_clients=clients)
    ours, theirs = SPAWN.Pipe()
    rounds = SPAWN.Value("q", 0)
    sent = SPAWN.Array("q", connections)
    connects = SPAWN.Value("q", 0)
    with (
        run_example_broker(users, without) as (port, broker),
        running(run_server, port, policy, rounds, theirs) as server,
        running(run_clients, port, list(range(clients)), training),
    ):
        while rounds.value < 10:
            time.sleep(0.05)
        pid = server.pid or 0
        before = watch(seconds / 2, rounds, pid, broker)
        with running(run_flood, port, flooder, size, sent, connects) as flooding:
            while not sum(sent[:]) and not connects.value:
                time.sleep(0.01)
            cpu = cpu_seconds(flooding.pid or 0)
            during = watch(seconds, rounds, pid, broker)
            cpu = cpu_seconds(flooding.pid or 0) - cpu
            count = sum(sent[:])
        time.sleep(0.5)
        after = watch(seconds / 2, rounds, pid, broker)
        ours.send("stop")
        found = ours.recv()
    found.pop("waiting")
    undisturbed = (before.rounds_per_second + after.rounds_per_second) / 2
    return {
        "size": size,
        "flood_connections": connections,
        "clients": clients,
        "training": training,
        "ratio": round(during.rounds_per_second / undisturbed, 3),
        "growth_mib": round(during.server_mib - before.server_mib, 1),
        "flood_mb_per_second": round(count / seconds / 1e6, 1),
        "flooder_cpu": round(cpu / seconds, 2),
        "flood_connects_per_second": round(connects.value / seconds),
        "before": asdict(before),
        "during": asdict(during),
        "after": asdict(after),
        **found,
    }


def run_silent(port: int, user: str) -> None:
    """Report presence after every announcement, and never upload."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(connect_packet(user, "silent"))
        link.recv(64)
        alive = publish(TOPICS.of("alive", int(user)), PRESENT, retain=True)
        link.sendall(packet(0x82, struct.pack(">HB", 1, 0) + text(TOPICS.round) + b"\0") + alive)
        while link.recv(1 << 16):
            link.sendall(alive)


def first_rounds(clients: int, silent: bool, training: float, deadline: float) -> float:
    """Return the seconds of the first ten rounds; the policy selects all clients."""
    users = ["server", *map(str, range(clients))]
    policy = RoundPolicy(
        Sample(fraction=1.0), deadline=deadline, min_clients=clients, rounds=10, grace=2.0
    )
    ours, theirs = SPAWN.Pipe()
    rounds = SPAWN.Value("q", 0)
    with ExitStack() as stack:
        port, _ = stack.enter_context(run_example_broker(users))
        stack.enter_context(running(run_server, port, policy, rounds, theirs))
        stack.enter_context(running(run_clients, port, list(range(clients - silent)), training))
        if silent:
            stack.enter_context(running(run_silent, port, str(clients - 1)))
        seconds: float = ours.recv()["waiting"]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["flood", "silent"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000_000, 20])
    parser.add_argument("--connections", type=int, default=3, help="of the flooding account")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--training", type=float, default=0.05, help="seconds")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--deadline", type=float, default=3)
    parser.add_argument("--without", help="setting of the example broker to omit")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if given.what == "flood":
        found = []
        others = given.training, given.seconds, given.without
        for _ in range(given.repeats):
            for size in given.sizes:
                found.append(flood(size, given.connections, given.clients, *others))
                print(json.dumps(found[-1]), flush=True)
        for size in given.sizes:
            own = [x for x in found if x["size"] == size]
            ratios = [x["ratio"] for x in own]
            growth = max(x["growth_mib"] for x in own)
            print(
                f"{size} bytes: rate / undisturbed rate {statistics.median(ratios)} (median of"
                f" {ratios}), memory of the server +{growth} MiB at most"
            )

        return
    for _ in range(given.repeats):
        settings = given.training, given.deadline
        without = first_rounds(given.clients, False, *settings)
        with_silent = first_rounds(given.clients, True, *settings)
        extra = (with_silent - without) / given.deadline
        print(
            f"ten rounds, {given.clients} clients: {without:.2f} s; one of them silent:"
            f" {with_silent:.2f} s, {extra:.2f} deadlines more; its share is"
            f" {10 / given.clients:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
