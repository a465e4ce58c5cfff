"""Writes ``v1.json``: messages and what they decode to. Run once for each format version."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from checks import CODECS, METHODS, pair, sample_update, trained
from fedtern import Layout, compress, decompress

HERE = Path(__file__).parent
LAYOUT = Layout(("conv.weight", "conv.bias", "fc.weight"), ((5, 3, 3), (5,), (10, 6)))


def floats(values: np.ndarray) -> list[float]:
    """Float32 values as decimal numbers that read back to the same bits."""
    return [float(v) for v in values.reshape(-1)]


def arrays() -> list[dict[str, object]]:
    rng = np.random.default_rng(1)
    cases = [(np.array([0, 3, -1, 0.5, -5, 0]), 1 / 3), (np.zeros((2, 2)), 0.5)]
    cases += [(rng.standard_normal((20, 30)), p) for p in (0.01, 0.2, 1.0)]
    cases += [(rng.standard_normal(()), 1.0), (np.zeros((3, 0)), 1.0)]
    out = []
    for x, p in cases:
        data = compress(x, p)
        values = floats(decompress(data))
        out.append({"hex": data.hex(), "shape": list(x.shape), "values": values})
    return out


def payloads() -> list[dict[str, object]]:
    rng = np.random.default_rng(2)
    out = []
    for name, codec in CODECS.items():
        for _ in range(3):
            update = sample_update(name, LAYOUT, rng)
            data = codec.encode(update, LAYOUT)
            out.append({"name": name, "hex": data.hex(), "adds": floats(update.to_dense())})
    return out


def federations() -> list[dict[str, object]]:
    out = []
    for name in METHODS:
        server, clients = pair(METHODS[name], LAYOUT)
        start, rounds = floats(server.weights), []
        for t in range(4):
            uploads = []
            for i in (0, 1):
                clients[i].receive(server.catch_up(i, clients[i].round))
                data = clients[i].send(trained(clients[i], t))
                server.receive(i, data)
                uploads.append(data.hex())
            broadcast = server.finish_round(next_cohort=[0, 1] if t % 2 else None)
            weights = floats(server.weights)
            rounds.append(
                {"uploads": uploads, "broadcast": broadcast.data.hex(), "weights": weights}
            )
        away = [server.catch_up(2, since).hex() for since in range(-1, 5)]
        terms = server.terms.digest.hex()
        out.append({"method": name, "terms": terms, "start": start, "rounds": rounds, "away": away})
    return out


def main() -> None:
    path = HERE / "v1.json"
    if path.exists():
        sys.exit(f"{path} exists: golden bytes are never made again")
    layout = {"names": LAYOUT.names, "shapes": LAYOUT.shapes, "digest": LAYOUT.digest.hex()}
    golden = {"layout": layout, "arrays": arrays(), "payloads": payloads()}
    path.write_text(
        json.dumps({**golden, "federations": federations()}, separators=(",", ":")) + "\n"
    )


if __name__ == "__main__":
    main()
