"""Mosquitto on this machine, for demonstrations and benchmarks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtern.transports.mqtt.broker import BrokerError

_CONFIG = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
"""
_START_SECONDS = 10


def find_mosquitto() -> str | None:
    """Return the path of Mosquitto; None if it is not installed."""
    path = os.environ.get("PATH", os.defpath)
    # Debian installs it in /usr/sbin, which is not on every user's path.
    return shutil.which("mosquitto", path=f"{path}:/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin")


@contextmanager
def run_mosquitto() -> Iterator[int]:
    """Run Mosquitto on a free port of this machine and yield the port.

    Raises:
        BrokerError: Mosquitto is not installed or does not start.

    """
    program = find_mosquitto()
    if program is None:
        raise BrokerError(
            "Mosquitto is not installed; install it with `apt install mosquitto` or `brew install"
            " mosquitto`."
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "mosquitto.conf")
        log = Path(directory, "log")
        config.write_text(_CONFIG.format(port=port))
        with log.open("wb") as out:
            process = subprocess.Popen([program, "-c", str(config)], stdout=out, stderr=out)
        try:
            _wait_for_port(process, port, log)
            yield port
        finally:
            process.terminate()
            process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise BrokerError(f"Mosquitto does not start: {log.read_text(errors='replace').strip()}")
