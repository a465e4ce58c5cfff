"""Test whether masked uploads can be told from uniform random numbers.

`python benchmarks/secure_uniform.py` runs secure rounds of ten clients with the same, extreme
levels in every upload, and prints the statistics of what the server receives: a chi-square test
against the uniform distribution, the correlation of each masked value with the next one, and a
chi-square test of the differences between two clients. The statistics are in standard deviations:
values within ±3 are usual for uniform numbers. The levels without masks are a check of the test.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from numpy.typing import NDArray

from fedtern import Layout
from fedtern.core.protocol.terms import Terms
from fedtern.privacy.secure import ClientState, Context, SecureClient, SecureServer, secure_topk
from fedtern.privacy.secure import messages as wire
from fedtern.privacy.secure.graph import Graph

CLIENTS = 10
LEVELS = 7
PARAMETERS = 7850
BITS = Graph.of(range(CLIENTS), b"").sum_bits(LEVELS)

Values = NDArray[np.int64]


def masked_uploads(round: int) -> Values:
    """Return the masked values of all clients in one round, one row per client."""
    context = Context(
        Terms(Layout.flat(PARAMETERS), secure_topk(positions="random")), b"abc", round
    )
    server = SecureServer(context, range(CLIENTS), 0.01)
    outgoing = server.invitations()
    clients = {i: SecureClient(i, context, data) for i, data in outgoing.items()}
    for _ in range(2):
        for i, data in outgoing.items():
            client = clients[i]
            is_new = client.state is ClientState.INVITED
            answer = client.advertise() if is_new else client.receive(data)
            assert answer is not None
            server.receive(i, answer)
        outgoing = server.advance()
    rows = []
    for i, data in outgoing.items():
        clients[i].receive(data)
        count = clients[i].compressor.positions.size
        upload = clients[i].mask(np.full(count, LEVELS), LEVELS)
        _, reader = context.open(upload, wire.MASKED)
        rows.append(wire.read_masked(reader, count + 1, BITS).astype(np.int64))
    return np.array(rows)


def chi_square(values: Values) -> float:
    """Distance from the uniform distribution, in standard deviations."""
    bins = 1 << BITS
    counts = np.bincount(values.ravel() % bins, minlength=bins)
    expected = values.size / bins
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - (bins - 1)) / math.sqrt(2 * (bins - 1))


def serial_correlation(values: Values) -> float:
    """Correlation of each value with the next one, in standard deviations."""
    flat = values.ravel().astype(float)
    if flat.std() == 0:
        return math.inf
    return float(np.corrcoef(flat[:-1], flat[1:])[0, 1] * math.sqrt(flat.size - 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    masked = np.array([masked_uploads(round) for round in range(rounds)])
    plain = np.full(masked.shape, LEVELS)
    print("| uploads | values | uniform | serial correlation | difference of two clients |")
    print("|---|---|---|---|---|")
    for name, values in (("masked", masked), ("without masks", plain)):
        difference = values[:, 0] - values[:, 1]
        print(
            f"| {name} | {values.size:,} | {chi_square(values):+.1f} |"
            f" {serial_correlation(values):+.1f} | {chi_square(difference):+.1f} |"
        )


if __name__ == "__main__":
    main()
