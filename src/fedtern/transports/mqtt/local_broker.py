"""A broker of our own for a demonstration: somebody else's program, on this machine only."""

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


def find_mosquitto() -> str | None:
    """Where Mosquitto is; Debian has it where only administrators look."""
    path = os.environ.get("PATH", os.defpath)
    return shutil.which("mosquitto", path=f"{path}:/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin")


@contextmanager
def mosquitto() -> Iterator[int]:
    """Run Mosquitto on a free port of this machine, and tell which."""
    if (program := find_mosquitto()) is None:
        raise BrokerError(
            "there is no mosquitto on this machine: install it (apt install mosquitto, brew install"
            " mosquitto)"
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        config, log = Path(directory, "mosquitto.conf"), Path(directory, "log")
        config.write_text(_CONFIG.format(port=port))
        with log.open("wb") as out:
            process = subprocess.Popen([program, "-c", str(config)], stdout=out, stderr=out)
        try:
            _await(process, port, log)
            yield port
        finally:
            process.terminate()
            process.wait()


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise BrokerError(f"mosquitto does not start: {log.read_text(errors='replace').strip()}")
