"""Memory of a server's cache of broadcasts against its limit, ``cache_bytes``.

    python benchmarks/cache_memory.py

A server finishes rounds, and clients at many rounds catch up. The memory of the cache is the
difference in allocated memory (tracemalloc, which also sees NumPy) when the cache is dropped.
"""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np

from fedtern import Client, Method, Server, fedavg, signsgd, stc

METHODS: dict[str, tuple[Method, int]] = {
    "stc": (stc(1 / 100, 1 / 100), 20_000),
    "stc, tiny model": (stc(1 / 10, 1 / 10), 100),
    "stc, powers": (stc(1 / 100, 1 / 100, magnitudes="powers"), 20_000),
    "signsgd": (signsgd(0.01), 20_000),
    "fedavg": (fedavg(1), 5_000),
}
LIMITS = (20_000, 100_000, 1_000_000)
ROUNDS = 400


def cache_memory(method: Method, size: int, limit: int, rounds: int = ROUNDS) -> tuple[int, int]:
    """Return the largest memory of the cache, and its own estimate at that moment, in bytes."""
    rng = np.random.default_rng(0)
    server = Server(np.zeros(size), method, cache_bytes=limit)
    client = Client(0, method, weights=np.zeros(size))
    most = (0, 0)
    tracemalloc.start()
    for round in range(rounds):
        client.receive(server.catch_up(0, client.round).data)
        delta = rng.standard_normal(size).astype(np.float32)
        server.receive(0, client.send_delta(delta).data)
        server.finish_round()
        if round % (rounds // 4) == rounds // 4 - 1:
            for since in range(0, server.round, max(server.round // 40, 1)):
                server.catch_up(1, since)
            most = max(most, measure(server))
    tracemalloc.stop()
    return most


def measure(server: Server) -> tuple[int, int]:
    """Return the memory that is freed when the cache is dropped, and the cache's own estimate."""
    estimate = server._history.nbytes
    snapshot = server.snapshot()
    history = server._history
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    server._history = type(history)(history.limit, history.terms)
    del history
    gc.collect()
    freed = before - tracemalloc.get_traced_memory()[0]
    server.restore(snapshot)
    return freed, estimate


def main() -> None:
    """Print a table."""
    print("| method | parameters | cache_bytes | estimate | memory |")
    print("|---|---:|---:|---:|---:|")
    for name, (method, size) in METHODS.items():
        for limit in LIMITS:
            memory, estimate = cache_memory(method, size, limit)
            print(f"| {name} | {size:,} | {limit:,} | {estimate:,} | {memory:,} |")


if __name__ == "__main__":
    main()
