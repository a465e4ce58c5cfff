"""Secret sharing, the graph of neighbours, shared positions and rounding."""

from __future__ import annotations

import math
import secrets
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtern import Client, Layout, LocalProtocolError, RemoteProtocolError, Server
from fedtern.core.feedback import ErrorFeedback
from fedtern.core.protocol.terms import Terms
from fedtern.privacy.secure import ClientState, ServerState, next_quantum, secure_topk, shamir
from fedtern.privacy.secure.crypto import key_stream, open_share, seal_share
from fedtern.privacy.secure.graph import Graph
from fedtern.privacy.secure.method import random_positions, shared_positions_of
from fedtern.store import DurableServer, Store


@given(st.integers(1, 12), st.integers(0, 8), st.randoms())
def test_any_shares_as_many_as_the_threshold_give_the_secret(threshold, more, random):
    secret = shamir.random_secret(secrets.token_bytes)
    points = random.sample(range(1, 1000), threshold + more)
    shares = shamir.split(secret, points, threshold, secrets.token_bytes)
    chosen = random.sample(range(len(points)), threshold)
    assert shamir.combine({points[i]: shares[i] for i in chosen}) == secret


def test_fewer_shares_than_the_threshold_fit_every_secret():
    """With one share less, each secret has exactly one polynomial: the shares say nothing."""
    shares = shamir.split(bytes(16), [1, 2, 3], 3, secrets.token_bytes)
    # The third share that leads to another secret exists.
    target = 12345
    base = int.from_bytes(shamir.combine({1: shares[0], 2: shares[1], 3: bytes(16)}), "little")
    one = (1).to_bytes(16, "little")
    slope = int.from_bytes(shamir.combine({1: bytes(16), 2: bytes(16), 3: one}), "little")
    third = (target - base) * pow(slope, -1, shamir.PRIME) % shamir.PRIME
    found = shamir.combine({1: shares[0], 2: shares[1], 3: third.to_bytes(16, "little")})
    assert int.from_bytes(found, "little") == target


def test_a_threshold_above_the_number_of_shares_is_refused():
    with pytest.raises(ValueError, match="threshold must be from 1 to 2, got 3"):
        shamir.split(bytes(16), [1, 2], 3, secrets.token_bytes)


@pytest.mark.parametrize("size", [3, 10, 49, 50, 100, 1000])
def test_neighbours_are_mutual_and_equally_many(size):
    graph = Graph.of(range(5, 5 + size), b"seed")
    neighbours = {client: set(graph.neighbours(client)) for client in graph.clients}
    assert {len(found) for found in neighbours.values()} == {graph.degree}
    assert all(a in neighbours[b] for a, found in neighbours.items() for b in found)
    assert all(client not in found for client, found in neighbours.items())


def test_neighbours_of_large_cohorts_grow_with_the_logarithm():
    degrees = [Graph.of(range(n), b"").degree for n in (10, 100, 1000, 10_000)]
    assert degrees == [9, 56, 80, 112]


def test_two_groups_of_neighbours_never_have_enough_shares_each():
    for size in range(3, 300):
        graph = Graph.of(range(size), b"")
        assert graph.degree < 2 * graph.threshold


def hypergeometric_tail(population: int, marked: int, drawn: int, at_least: int) -> float:
    """Probability that a sample has at least so many marked ones."""
    ways = sum(
        math.comb(marked, k) * math.comb(population - marked, drawn - k)
        for k in range(at_least, min(drawn, marked) + 1)
    )
    return ways / math.comb(population, drawn)


@pytest.mark.parametrize("size", [50, 100, 1000, 10_000])
def test_a_fifth_of_dropouts_or_of_colluding_clients_is_harmless(size):
    """Union bounds over all clients, for random dropouts and random colluding clients."""
    graph = Graph.of(range(size), b"")
    fifth = size // 5
    too_many_left = graph.degree - graph.threshold + 1
    assert size * hypergeometric_tail(size - 1, fifth, graph.degree, too_many_left) < 1e-6
    assert size * hypergeometric_tail(size - 1, fifth, graph.degree, graph.threshold) < 1e-7


def test_key_streams_are_those_of_aes():
    """FIPS-197, appendix C.3, for the zero block of the all-zero key of 256 bits."""
    stream = key_stream(bytes(32), 4).astype("<u4").tobytes()
    assert stream.hex() == "dc95c078a2408989ad48a21492842087"


def test_shares_are_sealed_for_one_direction():
    sealed = seal_share(bytes(32), True, b"text", b"context")
    assert open_share(bytes(32), True, sealed, b"context") == b"text"
    for direction, context in ((False, b"context"), (True, b"other")):
        with pytest.raises(RemoteProtocolError):
            open_share(bytes(32), direction, sealed, context)


LAYOUT = Layout.flat(103)
METHOD = secure_topk(1 / 10, 1 / 10, "random")


def test_pseudorandom_positions_visit_every_weight_equally_often():
    terms = Terms(LAYOUT, METHOD)
    visited = np.concatenate([random_positions(terms, round) for round in range(22)])
    assert np.bincount(visited, minlength=103).tolist() == [2] * 103
    first, again = (random_positions(terms, round).tolist() for round in (0, 11))
    assert first == sorted(first)
    assert first != again


@pytest.mark.parametrize("seed", [0, 1])
def test_rounding_at_random_keeps_the_mean_within_its_noise(seed):
    rng = np.random.default_rng(seed)
    compressor = shared_positions_of(METHOD).at(np.arange(103), 0.25)
    x = rng.uniform(-1.7, 1.7, 103).astype(np.float32)
    found = [compressor.to_levels(compressor.compress(x, LAYOUT, rng)) for _ in range(200)]
    assert np.abs(np.mean(found, 0) * 0.25 - x).max() < 5 * 0.25 * 0.5 / math.sqrt(200)
    assert np.abs(found).max() <= 7


def test_large_values_are_clipped_and_the_rest_stays_in_the_residual():
    client = Client(0, METHOD, weights=np.zeros(103))
    delta = np.full(103, 100, np.float32)
    rule = ErrorFeedback(shared_positions_of(METHOD).at(np.array([4, 9]), 2.0))
    sent = client.send_delta(delta, feedback=rule)
    assert sent.update.values.tolist() == [14, 14]
    assert client.residual[[3, 4, 9]].tolist() == [100, 86, 86]


def test_plain_uploads_of_a_secure_method_are_refused():
    client = Client(0, METHOD, weights=np.zeros(103))
    with pytest.raises(LocalProtocolError, match="cannot make plain uploads"):
        client.send(np.ones(103))


def test_the_quantum_follows_the_share_of_clipped_values():
    assert next_quantum(1.0, 1.0) > 2
    assert next_quantum(1.0, 0.05) == 1
    assert 0.9 < next_quantum(1.0, 0.0) < 1


def test_an_update_that_did_not_count_returns_to_the_residual():
    server = Server(np.zeros(103), METHOD, cohort=[0, 1])
    clients = [Client(i, METHOD, weights=np.zeros(103)) for i in range(2)]
    rule = ErrorFeedback(shared_positions_of(METHOD).at(np.array([4, 9]), 2.0))
    for client in clients:
        client.send_delta(np.full(103, 3.0), feedback=rule)
    delta = np.zeros(103)
    delta[4] = 5
    with pytest.raises(LocalProtocolError, match=r"clients \[7\] are not in the cohort"):
        server.finish_round(delta=delta, counted=[7])
    broadcast = server.finish_round(delta=delta, counted=[1])
    counted = [client.receive(broadcast.data).counted for client in clients]
    assert counted == [False, True]
    assert clients[0].residual[4] == 3
    assert clients[1].residual[4] != 3
    assert server.weights[4] == clients[0].weights[4] > 0


def test_a_durable_server_replays_a_secure_sum(tmp_path):
    def open_server() -> DurableServer:
        return DurableServer(Server(np.zeros(103), METHOD, cohort=[0, 1]), Store(tmp_path))

    delta = np.zeros(103)
    delta[4] = 5
    server = open_server()
    data = server.finish_round(delta=delta, counted=[1]).data
    weights = server.weights.copy()
    server.store.close()
    again = open_server()
    assert again.round == 1
    assert (again.weights == weights).all()
    assert again.newest_broadcast(0) == data


def test_the_guide_lists_all_states():
    page = Path(__file__).parents[3] / "docs" / "how-to" / "secure-aggregation.md"
    text = page.read_text(encoding="utf-8")
    for state in (*ServerState, *ClientState):
        assert f"| `{state.name}` | {state.value} |" in text
