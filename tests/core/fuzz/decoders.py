"""Throws mutated and random messages at every decoder: `python tests/core/fuzz/decoders.py`.

Whatever comes in, a decoder returns what it read or raises ``DecodeError`` (the protocol's, also
``RemoteProtocolError``), and nobody allocates more than the layout and the message account for.
Checksums are made right again after each mutation, so that what lies behind them is reached.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from checks import CODECS, LAYOUT, METHODS, pair, sample_update, trained
from fedtern import (
    Client,
    DecodeError,
    Layout,
    Method,
    RemoteProtocolError,
    Server,
    Snapshot,
    compress,
    decompress,
)

OFTEN = 61  # of so many messages, one has its memory measured and every state compared


@dataclass(frozen=True)
class Target:
    """A decoder, messages that it accepts, and the states that a refusal must not change."""

    decode: Callable[[bytes], object]
    seeds: list[bytes]
    states: tuple[Server | Client, ...] = ()
    sealed: bool = True  # whether a checksum has to be made right after a mutation

    def fingerprint(self) -> list[bytes]:
        return [state.snapshot().to_bytes() for state in self.states]


def targets(rng: np.random.Generator) -> Iterator[tuple[str, Target]]:
    """Every decoder there is."""
    for name, codec in CODECS.items():
        seeds = [codec.encode(sample_update(name, LAYOUT, rng), LAYOUT) for _ in range(40)]
        decode = partial(_swapped, codec.decode)
        yield f"codec {name}", Target(decode, seeds, sealed=False)
    for name, method in METHODS.items():
        yield from protocol_targets(name, method)
    arrays = [compress(rng.standard_normal((6, 7)), p) for p in (0.05, 0.3, 1.0)]
    yield "decompress", Target(lambda data: decompress(data, max_size=10_000), arrays)
    states = [party.snapshot().to_bytes() for party in pair(METHODS["stc"])[1]]
    yield "snapshot", Target(Snapshot.from_bytes, states, sealed=False)


def _swapped(decode: Callable[[bytes, Layout], object], data: bytes) -> object:
    return decode(data, LAYOUT)


def protocol_targets(name: str, method: Method) -> Iterator[tuple[str, Target]]:
    server, clients = pair(method)
    uploads, downs = [], []
    for t in range(6):
        for i in (0, t % 2 + 1):
            clients[i].receive(server.catch_up(i, clients[i].round).data)
            data = clients[i].send(trained(clients[i], t)).data
            uploads.append(data)
            server.receive(i, data)
        downs += [server.finish_round(next_cohort=[0, 1, 2]).data]
        downs += [server.catch_up(9, since).data for since in range(-1, server.round)]
    fresh, (client, *_) = pair(method)
    begin = client.snapshot()

    def upload(data: bytes) -> None:
        fresh.receive(3, data)
        fresh.discard(3)

    def download(data: bytes) -> None:
        client.receive(data)
        client.restore(begin)

    yield f"server {name}", Target(upload, uploads, (fresh,))
    yield f"client {name}", Target(download, downs, (client,))


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
    for name, target in targets(rng):
        start, refused, peak = time.perf_counter(), 0, 0.0
        before = target.fingerprint()
        for data in target.seeds[:3]:
            attempt(target, data)  # compiles what has to be compiled
        for number in range(messages):
            data = mutate(target.seeds[int(rng.integers(len(target.seeds)))], target.seeds, rng)
            if target.sealed and rng.random() < 0.9:
                data = reseal(data)
            try:
                if number % OFTEN:
                    refused += attempt(target, data)
                else:
                    accepted, memory = measured(target, data)
                    refused, peak = refused + accepted, max(peak, memory)
                    assert target.fingerprint() == before, "a state has changed"
            except BaseException:
                report(f"{name}: {data.hex()}")
                raise
        assert target.fingerprint() == before, "a state has changed"
        seconds = time.perf_counter() - start
        report(
            f"{name:24} {messages} messages, {refused / messages:6.1%} refused, at most"
            f" {peak:.1f} bytes a byte of message and model, {seconds:.0f} s"
        )


def attempt(target: Target, data: bytes) -> bool:
    """Whether the decoder refused a message; any other error than its own goes through."""
    try:
        target.decode(data)
    except (DecodeError, RemoteProtocolError):
        return True
    return False


def measured(target: Target, data: bytes) -> tuple[bool, float]:
    """The same, and the peak of memory for each byte of the message and the model."""
    # What other threads take meanwhile, such as the test runner's, is counted with it. They do so
    # seldom; a decoder takes the same for the same message each time.
    for _ in range(3):
        tracemalloc.start()
        refused = attempt(target, data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # A few kB are Python's own: objects, tracebacks, small arrays.
        ratio = max(peak - 32_000, 0) / (len(data) + 4 * LAYOUT.size)
        if ratio < 64:
            break
    assert ratio < 64, f"{peak} bytes for a message of {len(data)}"
    return refused, ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="for each decoder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    fuzz(options.messages, options.seed, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
