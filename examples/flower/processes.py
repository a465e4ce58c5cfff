"""Run a SuperLink and SuperNodes as processes on this machine, until a ``with`` block ends."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from certificates import Certificates

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}


class Processes:
    """A deployment in a directory. With certificates it uses TLS and node keys."""

    def __init__(self, directory: Path, certificates: Certificates | None = None) -> None:
        self.directory = directory
        self.certificates = certificates
        self.port = free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        home = directory / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        tools = str(Path(sys.executable).parent)
        self.environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(home),
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        }
        secure = (
            "insecure = true"
            if certificates is None
            else f'root-certificates = "{certificates.authority}"'
        )
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\n{secure}\n'
        )

    def superlink(self, *, database: bool = True) -> None:
        """Start the SuperLink, with a database for nodes and runs, or without."""
        command = ["flower-superlink"]
        if database:
            command += ["--database", str(self.directory / "superlink.db")]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        if self.certificates is None:
            command += ["--insecure"]
        else:
            command += [*self.certificates.server_options, "--enable-supernode-auth"]
        self.start("superlink", command)
        self.wait("the SuperLink", lambda: answers(self.port))

    def supernode(self, number: int, of: int, key: Path | None = None, root: str = "") -> None:
        """Start a SuperNode. Its state directory stays when it ends."""
        state = self.directory / f"state-{number}"
        config = f'partition-id={number} num-partitions={of} fedtern-state="{state}"'
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--port", str(free_port()), "--node-config", config]
        if self.certificates is None:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", root or str(self.certificates.authority)]
        if key is not None:
            command += ["--auth-supernode-private-key", str(key)]
        self.start(f"supernode-{number}", command)

    def run(self, app: Path, name: str, **config: object) -> subprocess.Popen[bytes]:
        """Start a run of an app with ``flwr run``; its output goes to a log file."""
        settings = " ".join(f"{key.replace('_', '-')}={_toml(v)}" for key, v in config.items())
        return self.start(name, ["flwr", "run", str(app), "here", "--stream", "-c", settings])

    def flwr(self, *arguments: str) -> str:
        """Run a ``flwr`` command and return its output."""
        done = subprocess.run(
            ["flwr", *arguments],
            env=self.environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def wire_bytes(self) -> dict[str, object]:
        """Return Flower's byte counts of the latest run."""
        runs = json.loads(self.flwr("list", "here", "--format", "json"))["runs"]
        latest: dict[str, object] = runs[0]
        return latest

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a process in its own session; its output goes to a log file."""
        with self.log_file(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                cwd=self.directory,
                start_new_session=True,
            )
        self.running[name] = process
        return process

    def log_file(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def said(self, name: str) -> str:
        """Return the output of a process so far, without colours."""
        path = self.log_file(name)
        text = path.read_text(errors="replace") if path.exists() else ""
        return re.sub(r"\x1b\[[0-9;]*m", "", text)

    def wait(self, what: str, ready: Callable[[], bool], seconds: float = 120) -> None:
        """Wait until ``ready()``; on a timeout, raise with the last output of all processes."""
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                last = "\n".join(f"== {n}\n{self.said(n)[-1500:]}" for n in self.running)
                raise TimeoutError(f"waited {seconds:g} s for {what}\n{last}")
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """Send SIGKILL to a process and its descendants."""
        process = self.running.pop(name)
        for pid in [process.pid, *descendants(process.pid)]:
            _signal(pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str, seconds: float = 15) -> None:
        """Send SIGTERM to a process; kill it after a timeout, and then its descendants."""
        process = self.running.pop(name)
        started = descendants(process.pid)
        _signal(process.pid, signal.SIGTERM)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in started:
            _signal(pid, signal.SIGKILL)

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in reversed(list(self.running)):
            self.stop(name)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Ids of all processes that a process has started, directly or indirectly."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, IndexError):
            continue
        if entry.name.isdecimal():
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(children.get(pid, []))
    for child in found:
        found += children.get(child, [])
    return found


def free_port() -> int:
    """Return an unused port below those that the kernel gives to outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def answers(port: int) -> bool:
    """Return whether a process listens on a port."""
    with socket.socket() as caller:
        caller.settimeout(1)
        return caller.connect_ex(("127.0.0.1", port)) == 0


def _toml(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else str(value).lower()
