"""Damage campaign: change every byte of real stores, cut every file everywhere, and recover.

    python tests/store/damage.py            # every byte and every length of every file
    python tests/store/damage.py --every 50 # a sample

For each damage, the outcome is one of these:

- reported: opening the store raises ``DamagedStoreError``.
- unharmed: the store recovers exactly the recorded state, because the data exists twice.
- SILENT LOSS: the store recovers another state. There must be none.

The stores are those of a server and of a client, once closed and once left by a killed process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtern import (
    Client,
    DamagedStoreError,
    DurableClient,
    DurableServer,
    Layout,
    Server,
    Store,
    stc,
)

LAYOUT = Layout(("weight", "bias"), ((8, 9), (8,)))
START = np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32)
METHODS = {
    "stc": stc(1 / 10, 1 / 10),
    "stc-powers": stc(1 / 10, 1 / 10, magnitudes="powers"),
}
OUTCOMES = ("reported", "unharmed", "SILENT LOSS")

Open = Callable[[Path], bytes]


@dataclass(frozen=True)
class Sample:
    """A store to damage.

    Attributes:
        name: the name in the table.
        path: the directory.
        open: opens a store in a directory and returns the recovered state.
        state: the state that must be recovered.

    """

    name: str
    path: Path
    open: Open
    state: bytes


def open_server(path: Path, method: str) -> bytes:
    """Open the store of a server and return its state."""
    with Store(path) as store:
        return DurableServer(new_server(method), store).server.snapshot().to_bytes()


def open_client(path: Path, method: str) -> bytes:
    """Open the store of a client and return its state."""
    with Store(path) as store:
        return DurableClient(new_client(0, method), store).client.snapshot().to_bytes()


def new_server(method: str) -> Server:
    """Return a server at round 0."""
    return Server(START, METHODS[method], LAYOUT)


def new_client(i: int, method: str) -> Client:
    """Return a client at round 0."""
    return Client(i, METHODS[method], LAYOUT, START)


def make_samples(root: Path, method: str) -> Iterator[Sample]:
    """Yield stores of a federation: two snapshots, two logs, and uploads of an open round."""
    rng = np.random.default_rng(1)
    with (
        Store(root / "server", log_bytes=1500) as server_store,
        Store(root / "client") as client_store,
    ):
        server = DurableServer(new_server(method), server_store)
        client = DurableClient(new_client(0, method), client_store)
        other = new_client(1, method)

        def upload(party: Client | DurableClient, i: int) -> None:
            party.receive(server.catch_up(i, party.round).data)
            delta = rng.standard_normal(LAYOUT.size).astype(np.float32)
            server.receive(i, party.send_delta(delta).data)

        newest_log = ""
        # Until the log of the second snapshot has a few rounds.
        while len(newest_log) == 0 or server.store._open_log().record_bytes < 800:
            upload(client, 0)
            upload(other, 1)
            server.finish_round()
            newest_log = "" if len(list(server.store.path.glob("*.log"))) < 2 else "second"
        for _ in range(6):  # the client only receives
            client.receive(server.catch_up(0, client.round).data)
            upload(other, 1)
            server.finish_round()
        client.receive(server.catch_up(0, client.round).data)
        upload(other, 1)
        states = (server.server.snapshot().to_bytes(), client.client.snapshot().to_bytes())
        openers: tuple[Open, Open] = (
            lambda path: open_server(path, method),
            lambda path: open_client(path, method),
        )
        for store, opener, state in zip((server_store, client_store), openers, states, strict=True):
            killed = root / f"{store.path.name}-killed"
            shutil.copytree(store.path, killed)
            yield Sample(f"{method}, {store.path.name}, killed", killed, opener, state)
    for path, opener, state in zip(("server", "client"), openers, states, strict=True):
        yield Sample(f"{method}, {path}, closed", root / path, opener, state)


def outcome(sample: Sample, damaged: Path) -> str:
    """Open a damaged store and return the outcome."""
    try:
        state = sample.open(damaged)
    except DamagedStoreError:
        return "reported"
    return "unharmed" if state == sample.state else "SILENT LOSS"


def campaign(sample: Sample, every: int, report: Callable[[str, str, str], None]) -> None:
    """Damage each file of a store in every way.

    Args:
        sample: the store.
        every: how many bytes and lengths to skip; 1 for none.
        report: receives the kind of damage, the kind of file and the outcome.

    """
    work = sample.path.with_name(sample.path.name + "-damaged")
    files = sorted(path for path in sample.path.iterdir() if path.name != "lock")
    originals = {path.name: path.read_bytes() for path in files}

    def attempt(name: str, kind: str, content: bytes | None) -> None:
        for present in work.iterdir():
            present.unlink()
        for other, original in originals.items():
            data = content if other == name else original
            if data is not None:
                (work / other).write_bytes(data)
        report(kind, Path(name).suffix.removeprefix("."), outcome(sample, work))

    work.mkdir()
    for name, data in originals.items():
        attempt(name, "missing", None)
        attempt(name, "zeroed", bytes(len(data)))
        for at in range(0, len(data), every):
            changed = bytearray(data)
            changed[at] ^= 1 << at % 8
            attempt(name, "one bit", bytes(changed))
            changed[at] = data[at] ^ 0xFF
            attempt(name, "one byte", bytes(changed))
            attempt(name, "truncated", data[:at])
            attempt(name, "zeroed from a byte on", data[:at].ljust(len(data), b"\0"))
    newest = max(name for name in originals if name.endswith(".log"))
    pair = [newest, newest.replace(".log", ".safetensors")]
    kept = {name: originals.pop(name) for name in pair}
    if originals:
        attempt("", "newest snapshot and log missing", None)
    originals.update(kept)
    shutil.rmtree(work)


def run(every: int, methods: list[str]) -> dict[tuple[str, str, str], Counter[str]]:
    """Run the whole campaign and return the outcomes by store, damage and file."""
    found: dict[tuple[str, str, str], Counter[str]] = {}
    real_fsync = os.fsync
    os.fsync = lambda _descriptor: None  # damage is simulated; nothing has to reach the disk
    try:
        for method in methods:
            with tempfile.TemporaryDirectory() as root:
                for sample in list(make_samples(Path(root), method)):
                    assert outcome(sample, sample.path) == "unharmed"

                    def report(
                        damage: str, file: str, result: str, name: str = sample.name
                    ) -> None:
                        found.setdefault((name, damage, file), Counter())[result] += 1

                    campaign(sample, every, report)
    finally:
        os.fsync = real_fsync
    return found


def main() -> int:
    """Print the outcomes; the exit status is 1 after a silent loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="test every n-th byte only")
    found = run(parser.parse_args().every, list(METHODS))
    print(f"{'store':28} {'damage':32} {'file':12}", *(f"{name:>12}" for name in OUTCOMES))
    total: Counter[str] = Counter()
    for (name, damage, file), counts in found.items():
        total.update(counts)
        print(f"{name:28} {damage:32} {file:12}", *(f"{counts[name]:12}" for name in OUTCOMES))
    print(f"{'total':74}", *(f"{total[name]:12}" for name in OUTCOMES))
    return int(total["SILENT LOSS"] > 0)


if __name__ == "__main__":
    sys.exit(main())
