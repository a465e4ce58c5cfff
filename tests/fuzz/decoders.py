"""Throws mutated and random messages at every decoder: `python tests/fuzz/decoders.py`.

Whatever comes in, a decoder returns what it read or raises ``DecodeError`` (the protocol's, also
``RemoteProtocolError``), and nobody allocates more than the layout and the message account for.
Checksums are made right again after each mutation, so that what lies behind them is reached.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from checks import CODECS, LAYOUT, METHODS, pair, sample_update, trained
from fedtern import DecodeError, RemoteProtocolError, Snapshot, compress, decompress

Target = tuple[Callable[[bytes], object], list[bytes]]


def targets(rng: np.random.Generator) -> dict[str, Target]:
    """Every decoder, with messages that it accepts."""
    found: dict[str, Target] = {}
    for name, codec in CODECS.items():
        seeds = [codec.encode(sample_update(name, LAYOUT, rng), LAYOUT) for _ in range(40)]
        found[f"codec {name}"] = (lambda data, codec=codec: codec.decode(data, LAYOUT)), seeds
    for name, method in METHODS.items():
        found |= protocol_targets(name, method)
    arrays = [compress(rng.standard_normal((6, 7)), p) for p in (0.05, 0.3, 1.0)]
    found["decompress"] = (lambda data: decompress(data, max_size=10_000)), arrays
    states = [party.snapshot().to_bytes() for party in (*pair(METHODS["stc"])[1],)]
    found["snapshot"] = Snapshot.from_bytes, states
    return found


def protocol_targets(name: str, method) -> Iterator[tuple[str, Target]]:
    server, clients = pair(method)
    uploads, downs = [], []
    for t in range(6):
        for i in (0, t % 2 + 1):
            clients[i].receive(server.catch_up(i, clients[i].round))
            data = clients[i].send(trained(clients[i], t))
            uploads.append(data)
            server.receive(i, data)
        downs += [server.finish_round(next_cohort=[0, 1, 2]).data]
        downs += [server.catch_up(9, since) for since in range(-1, server.round)]
    fresh, fresh_clients = pair(method)

    def upload(data: bytes) -> None:
        fresh.receive(3, data)
        fresh.discard(3)

    def download(data: bytes) -> None:
        client = fresh_clients[0]
        state = client.snapshot()
        client.receive(data)
        client.restore(state)

    yield f"server {name}", (upload, uploads)
    yield f"client {name}", (download, downs)


def mutate(data: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    """A message that is nearly, or not at all, like a valid one."""
    out = bytearray(data)
    for _ in range(1 + int(rng.integers(3))):
        kind, at = rng.integers(8), int(rng.integers(len(out) + 1))
        if kind <= 2 and at < len(out):
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 3 and at < len(out):
            out[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
        elif kind == 4:
            out = out[:at]
        elif kind == 5:
            out[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif kind == 6:
            other = others[int(rng.integers(len(others)))]
            out[at:] = other[int(rng.integers(len(other))) :]
        elif kind == 7 and rng.random() < 0.2:
            out = bytearray(rng.bytes(int(rng.integers(80))))
    return bytes(out)


def reseal(data: bytes) -> bytes:
    """The same message with a checksum that is right."""
    return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")


def fuzz(messages: int, seed: int, report: Callable[[str], None]) -> None:
    """Send ``messages`` to each decoder."""
    rng = np.random.default_rng(seed)
    for name, (decode, seeds) in targets(rng).items():
        for data in seeds:
            decode(data) if not name.startswith(("server", "client")) else None
        start, refused = time.perf_counter(), 0
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(messages):
            data = mutate(seeds[int(rng.integers(len(seeds)))], seeds, rng)
            if not name.startswith("codec") and name != "snapshot" and rng.random() < 0.9:
                data = reseal(data)
            try:
                decode(data)
            except (DecodeError, RemoteProtocolError):
                refused += 1
            except BaseException:
                report(f"{name}: {data.hex()}")
                raise
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown < 64, f"{name} took {grown:.0f} MiB"
        seconds = time.perf_counter() - start
        report(
            f"{name:24} {messages} messages, {refused / messages:6.1%} refused,"
            f" peak memory +{grown:.1f} MiB, {seconds:.0f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="for each decoder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    fuzz(options.messages, options.seed, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
