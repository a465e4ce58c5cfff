"""Send mutated and random messages to every decoder: `python tests/core/fuzz/decoders.py`.

For any input, a decoder must return a value or raise ``DecodeError`` (servers and clients also
``RemoteProtocolError``), and must not allocate more memory than the layout and the message justify.
Checksums are corrected after each mutation, so that the code behind them is reached.
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
    RemoteProtocolError,
    Server,
    Snapshot,
    compress,
    decompress,
)
from fedtern.core.codecs import Codec
from fedtern.core.protocol.initial import Precision

CHECK_EVERY = 61  # messages between two checks of memory and states


@dataclass(frozen=True)
class Target:
    """A decoder to test.

    Attributes:
        decode: the decoder.
        seeds: messages that it accepts.
        states: servers and clients that a refused message must not change.
        sealed: whether messages end with a checksum.

    """

    decode: Callable[[bytes], object]
    seeds: list[bytes]
    states: tuple[Server | Client, ...] = ()
    sealed: bool = True

    def fingerprint(self) -> list[bytes]:
        return [state.snapshot().to_bytes() for state in self.states]


def targets(rng: np.random.Generator) -> Iterator[tuple[str, Target]]:
    """Yield every decoder with its name."""
    for name, codec in CODECS.items():
        seeds = [codec.encode(sample_update(name, LAYOUT, rng), LAYOUT) for _ in range(40)]
        decode = partial(_decode_payload, codec)
        yield f"codec {name}", Target(decode, seeds, sealed=False)
    for name, method in METHODS.items():
        yield from protocol_targets(name, *pair(method), *pair(method))
    for initial in ("float16", "int8"):
        parties = carried_pair(initial)
        yield from protocol_targets(f"carried {initial}", *parties, *carried_pair(initial))
    arrays = [compress(rng.standard_normal((6, 7)), p) for p in (0.05, 0.3, 1.0)]
    yield "decompress", Target(lambda data: decompress(data, max_size=10_000), arrays)
    states = [party.snapshot().to_bytes() for party in pair(METHODS["stc"])[1]]
    yield "snapshot", Target(Snapshot.from_bytes, states, sealed=False)


def _decode_payload(codec: Codec, data: bytes) -> object:
    return codec.decode(data, LAYOUT)


def carried_pair(initial: Precision) -> tuple[Server, list[Client]]:
    """Return a server and clients of a model with statistics and a rounded initial model.

    The first client has no weights, so that it accepts whole models.
    """
    rng = np.random.default_rng(0)
    model = {
        "w": rng.standard_normal((6, 5)).astype(np.float32),
        "bn.running_mean": rng.standard_normal(4),
        "steps": np.array(3),
        "mask": np.array([True, False]),
    }
    method = METHODS["stc"]
    server = Server.from_arrays(model, method, initial=initial)
    clients = [
        Client.from_arrays(
            i, model, method, is_initial=i > 0, **({"initial": initial} if i else {})
        )
        for i in range(3)
    ]
    return server, clients


def protocol_targets(
    name: str,
    server: Server,
    clients: list[Client],
    new_server: Server,
    new_clients: list[Client],
) -> Iterator[tuple[str, Target]]:
    """Yield the decoders of a server and a client.

    Args:
        name: the name of the federation.
        server: the server of a federation that makes the messages.
        clients: its clients.
        new_server: a server of the same federation that has not received anything.
        new_clients: likewise clients; the first one receives messages.

    """
    uploads = []
    downloads = []
    for t in range(6):
        for i in (0, t % 2 + 1):
            clients[i].receive(server.catch_up(i, clients[i].round).data)
            carried = {n: np.abs(a) if a.size == 4 else a for n, a in clients[i].carried.items()}
            data = clients[i].send(trained(clients[i], t), carried=carried).data
            uploads.append(data)
            server.receive(i, data)
        downloads += [server.finish_round(next_cohort=[0, 1, 2]).data]
        downloads += [server.catch_up(9, since).data for since in range(-1, server.round)]
    client = new_clients[0]
    first_snapshot = client.snapshot()

    def upload(data: bytes) -> None:
        new_server.receive(3, data)
        new_server.discard(3)

    def download(data: bytes) -> None:
        client.receive(data)
        client.restore(first_snapshot)

    yield f"server {name}", Target(upload, uploads, (new_server,))
    yield f"client {name}", Target(download, downloads, (client,))


def mutate(data: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    """Return a message with up to three random mutations."""
    out = bytearray(data)
    for _ in range(1 + int(rng.integers(3))):
        kind = rng.integers(8)
        at = int(rng.integers(len(out) + 1))
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
    """Correct the checksum of a message."""
    return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")


def fuzz(messages: int, seed: int, report: Callable[[str], None]) -> None:
    """Send the given number of messages to each decoder."""
    rng = np.random.default_rng(seed)
    for name, target in targets(rng):
        start = time.perf_counter()
        refused = 0
        peak = 0.0
        before = target.fingerprint()
        for data in target.seeds[:3]:
            is_refused(target, data)  # compile the kernels
        for number in range(messages):
            data = mutate(target.seeds[int(rng.integers(len(target.seeds)))], target.seeds, rng)
            if target.sealed and rng.random() < 0.9:
                data = reseal(data)
            try:
                if number % CHECK_EVERY:
                    refused += is_refused(target, data)
                else:
                    was_refused, memory = measure(target, data)
                    refused += was_refused
                    peak = max(peak, memory)
                    assert target.fingerprint() == before, "a state has changed"
            except BaseException:
                report(f"{name}: {data.hex()}")
                raise
        assert target.fingerprint() == before, "a state has changed"
        seconds = time.perf_counter() - start
        report(
            f"{name:24} {messages} messages, {refused / messages:6.1%} refused, at most"
            f" {peak:.1f} bytes per byte of message and model, {seconds:.0f} s"
        )


def is_refused(target: Target, data: bytes) -> bool:
    """Decode a message and return whether it was refused; raise any other error."""
    try:
        target.decode(data)
    except (DecodeError, RemoteProtocolError):
        return True
    return False


def measure(target: Target, data: bytes) -> tuple[bool, float]:
    """Return whether a message was refused, and peak memory per byte of message and model."""
    # The measurement includes other threads, such as the test runner's. So a high value is
    # measured again: a decoder allocates the same memory for the same message each time.
    for _ in range(3):
        tracemalloc.start()
        refused = is_refused(target, data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # Python itself takes a few kB: objects, tracebacks, small arrays.
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
