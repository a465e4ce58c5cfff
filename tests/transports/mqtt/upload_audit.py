"""Keeps the books of a federation: what was learned, what was counted, what is still to come.

Every client's every turn changes coordinates of its own, by amounts that are known. Wherever
uploads went, and however often, in the end each of these is in the aggregate or in the residual,
once.
"""

from __future__ import annotations

import numpy as np

from fedtern import Client, DurableClient, DurableServer, Server, stc
from fedtern.core.layout import Layout
from fedtern.core.protocol import Broadcast, Terms, Upload

CLIENTS, TURNS, WIDTH = 5, 400, 4
SIZE = CLIENTS * TURNS * WIDTH
METHOD = stc(p_up=3 / SIZE, p_down=6 / SIZE)
FEDERATION = "books"
TERMS = Terms(Layout.flat(SIZE), METHOD)
START = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
CHANGE = np.array([1, 2, 3, 4], np.float32)


def new_server() -> Server:
    return Server(START, METHOD, federation=FEDERATION)


def new_client(i: int, weights: np.ndarray | None = START) -> Client:
    return Client(i, METHOD, TERMS.layout, weights, federation=FEDERATION)


def at(i: int, round: int) -> slice:
    begin = (round * CLIENTS + i) * WIDTH
    return slice(begin, begin + WIDTH)


def trainer(i: int):
    """What a client learns in a round: its own four numbers."""

    def train(weights: np.ndarray, round: int) -> np.ndarray:
        weights[at(i, round)] += CHANGE
        return weights

    return train


class UploadAudit:
    def __init__(self) -> None:
        self.uploads: dict[tuple[int, int], bytes] = {}
        self.broadcasts: dict[int, Broadcast] = {}

    def record_upload(self, i: int, data: bytes) -> None:
        round = Upload.open(data, TERMS).head.round
        assert self.uploads.setdefault((i, round), data) == data

    def record_broadcast(self, data: bytes) -> None:
        broadcast = Broadcast.open(data, TERMS)
        assert self.broadcasts.setdefault(broadcast.round, broadcast).data == data

    def check(
        self,
        server: Server | DurableServer,
        clients: list[Client | DurableClient],
        killed: frozenset[int] = frozenset(),
    ) -> None:
        """AllClients agrees; nothing is lost or there twice.

        Who was ``killed`` may have been about to send something that nobody saw.
        """
        assert sorted(self.broadcasts) == list(range(server.round))
        aggregate = np.zeros(SIZE)
        for broadcast in self.broadcasts.values():
            for i in broadcast.counted:
                aggregate += self._update(i, broadcast.round) / len(broadcast.counted)
        applied = server.weights.astype(np.float64) - START + server.residual
        assert np.allclose(applied, aggregate, atol=1e-3)
        for client in clients:
            assert client.round == server.round
            assert client.weights.tobytes() == server.weights.tobytes()
            self._check_client(client, client.client_id in killed)

    def _check_client(self, client: Client | DurableClient, killed: bool) -> None:
        i = client.client_id
        held = client.residual.astype(np.float64)
        if client.pending is not None:
            held += Upload.open(client.pending, TERMS).update.to_dense()
        for broadcast in self.broadcasts.values():
            if i in broadcast.counted and broadcast.round != self._pending_round(client):
                held += self._update(i, broadcast.round)
        learned = np.zeros(SIZE)
        for round in range(TURNS):
            unseen = killed and np.allclose(held[at(i, round)], CHANGE, atol=1e-3)
            if (i, round) in self.uploads or unseen:
                learned[at(i, round)] = CHANGE
        assert np.allclose(held, learned, atol=1e-3), f"client {i}"

    def _pending_round(self, client: Client | DurableClient) -> int:
        return -1 if client.pending is None else client.round

    def _update(self, i: int, round: int) -> np.ndarray:
        return Upload.open(self.uploads[i, round], TERMS).update.to_dense().astype(np.float64)
