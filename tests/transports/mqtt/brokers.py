"""Real brokers and processes that stop at the end of a test."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fedtern.transports.mqtt.local_broker import find_mosquitto

MOSQUITTO = find_mosquitto()


def need_broker() -> None:
    if MOSQUITTO is None:
        pytest.skip("NO MQTT BROKER: install mosquitto, or these tests show nothing")


def free_port() -> int:
    """Return a port that nobody listens on.

    Not one that the kernel suggests: it would give the same one to an outgoing connection before
    a broker listens on it, or while a broker restarts. Below 32768 it gives none away.
    """
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Mosquitto:
    """A broker that can be stopped and started again on the same port."""

    def __init__(
        self, directory: Path, config: str = "allow_anonymous true\nset_tcp_nodelay true\n"
    ) -> None:
        self.port = free_port()
        self.path = directory / "mosquitto.conf"
        self.directory = directory
        self.path.write_text(config.replace("@PORT@", str(self.port)))
        if "@PORT@" not in config:
            self.path.write_text(f"listener {self.port} 127.0.0.1\n{config}")
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        with (self.directory / "mosquitto.log").open("ab") as log:
            command = [MOSQUITTO, "-c", str(self.path)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError((self.directory / "mosquitto.log").read_text())

    def stop(self, kill: bool = False) -> None:
        if self.process is not None:
            (self.process.kill if kill else self.process.terminate)()
            self.process.wait(60)
            self.process = None


class Processes:
    """Processes by name, all stopped at the end of the context."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen] = {}

    def kill(self, name: str) -> None:
        os.kill(self.running[name].pid, signal.SIGKILL)
        self.running.pop(name).wait()

    def __enter__(self):
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@contextmanager
def running(broker: Mosquitto):
    broker.start()
    try:
        yield broker
    finally:
        broker.stop(kill=True)
