"""Bytes that one client sends and receives in a round, decoded by the other side.

`python benchmarks/traffic.py` prints a table for the paper's VGG11*; `--svg FILE` draws it.
Updates are normally distributed: sizes depend only on the number and positions of the values.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from fedtern import Client, Layout, Method, Server, sgd, signsgd, stc, topk

CONVOLUTIONS = [(3, 32), (32, 64), (64, 128), *[(128, 128)] * 5]
COHORT = 10
LAG = 10


def vgg11s() -> Layout:
    """The 865,482 parameters of the paper's VGG11*."""
    shapes: list[tuple[int, ...]] = []
    for inputs, outputs in CONVOLUTIONS:
        shapes += [(outputs, inputs, 3, 3), (outputs,)]
    for inputs, outputs in [(128, 128), (128, 128), (128, 10)]:
        shapes += [(outputs, inputs), (outputs,)]
    return Layout(tuple(f"tensor{i}" for i in range(len(shapes))), tuple(shapes))


@dataclass(frozen=True)
class Traffic:
    name: str
    up: int
    down: int
    after_lag: int


def measure(name: str, method: Method, layout: Layout, seed: int) -> Traffic:
    """Train a cohort for some rounds; then measure the catch-up of a client that missed them."""
    rng = np.random.default_rng(seed)
    server = Server(np.zeros(layout.size), method, layout)
    clients = [Client(i, method, layout, server.weights) for i in range(COHORT)]
    for _ in range(LAG):
        for client in clients:
            step = 0.01 * rng.standard_normal(layout.size).astype(np.float32)
            upload = client.send(client.weights + step).data
            server.receive(client.client_id, upload)
        broadcast = server.finish_round()
        for client in clients:
            client.receive(broadcast.data)
    away = Client(COHORT, method, layout, np.zeros(layout.size))
    missed = server.catch_up(COHORT, since=0).data
    away.receive(missed)
    assert away.weights.tobytes() == server.weights.tobytes()
    return Traffic(name, len(upload), len(broadcast.data), len(missed))


def draw(rows: list[Traffic], path: str) -> None:
    from matplotlib import pyplot as plt  # pip install 'fedtern[report]'

    plt.rcParams.update({"svg.hashsalt": "fedtern", "font.size": 11})
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    bars = (
        ("up", "#1b7f79", [row.up for row in rows]),
        ("down", "#e08e45", [row.down for row in rows]),
        (f"down, after {LAG} rounds away", "#f3c98b", [row.after_lag for row in rows]),
    )
    for i, (label, colour, values) in enumerate(bars):
        places = [y + 0.27 * (i - 1) for y in range(len(rows))]
        axes.barh(places, values, height=0.25, label=label, color=colour)
        for y, value in zip(places, values, strict=True):
            axes.text(value * 1.1, y, readable(value), va="center", fontsize=8)
    axes.set(xscale="log", xlim=(1e3, 3e7), xlabel="bytes per client and round (log scale)")
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, metadata={"Date": None})


def readable(nbytes: float) -> str:
    """Format bytes as kB or MB."""
    return f"{nbytes / 1e6:.2f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.1f} kB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--p", type=float, default=1 / 400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--svg", help="write a figure of the table to this file")
    options = parser.parse_args()
    layout = vgg11s()
    p = options.p
    methods = {
        "uncompressed": sgd(),
        "signSGD": signsgd(),
        "top-k": topk(p),
        "STC": stc(p, p),
    }
    rows = [measure(name, method, layout, options.seed) for name, method in methods.items()]
    dense = rows[0]
    print(f"| | up | down | down, after {LAG} rounds away |\n|---|---:|---:|---:|")
    for row in rows:
        cells = [
            f"{readable(ours)} (1/{theirs / ours:,.0f})" if row is not dense else readable(ours)
            for ours, theirs in (
                (row.up, dense.up),
                (row.down, dense.down),
                (row.after_lag, dense.after_lag),
            )
        ]
        print(f"| {row.name} | {' | '.join(cells)} |")
    if options.svg:
        draw(rows, options.svg)


if __name__ == "__main__":
    main()
