"""An audit of a federation: each update is in the aggregate or in a residual, exactly once.

In each round, each client changes four weights that no other client and no other round changes, by
known amounts. So the audit can find every update again, whatever the network did to the uploads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtern import Client, Server, stc
from fedtern.core.layout import Layout
from fedtern.core.protocol import Broadcast, Terms, Upload
from fedtern.federation import ClientLike, ServerLike

CLIENTS = 5
ROUNDS = 400  # at most
WIDTH = 4  # weights that a client changes in a round
SIZE = CLIENTS * ROUNDS * WIDTH
METHOD = stc(p_up=3 / SIZE, p_down=6 / SIZE)
FEDERATION = "books"
TERMS = Terms(Layout.flat(SIZE), METHOD)
START = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
CHANGE = np.array([1, 2, 3, 4], np.float32)


def new_server() -> Server:
    return Server(START, METHOD, federation=FEDERATION)


def new_client(i: int, weights: np.ndarray | None = START) -> Client:
    return Client(i, METHOD, TERMS.layout, weights, federation=FEDERATION)


def own_weights(i: int, round: int) -> slice:
    begin = (round * CLIENTS + i) * WIDTH
    return slice(begin, begin + WIDTH)


def trainer(i: int):
    """Return the training of a client, which changes its own weights of a round."""

    def train(weights: np.ndarray, round: int) -> np.ndarray:
        weights[own_weights(i, round)] += CHANGE
        return weights

    return train


class UploadAudit:
    """Records uploads and broadcasts, and checks them at the end."""

    def __init__(self) -> None:
        self.uploads: dict[tuple[int, int], bytes] = {}
        self.broadcasts: dict[int, Broadcast] = {}

    def record_upload(self, i: int, data: bytes) -> None:
        round = Upload.open(data, TERMS).header.round
        assert self.uploads.setdefault((i, round), data) == data

    def record_broadcast(self, data: bytes) -> None:
        broadcast = Broadcast.open(data, TERMS)
        assert self.broadcasts.setdefault(broadcast.round, broadcast).data == data

    def check(
        self,
        server: ServerLike,
        clients: Sequence[ClientLike],
        killed: frozenset[int] = frozenset(),
    ) -> None:
        """Check that all weights are equal and that each update counts exactly once.

        A killed client may have stored an upload that was never published.
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

    def _check_client(self, client: ClientLike, killed: bool) -> None:
        i = client.client_id
        held = client.residual.astype(np.float64)
        if client.pending is not None:
            held += Upload.open(client.pending, TERMS).update.to_dense()
        for broadcast in self.broadcasts.values():
            if i in broadcast.counted and broadcast.round != self._pending_round(client):
                held += self._update(i, broadcast.round)
        learned = np.zeros(SIZE)
        for round in range(ROUNDS):
            unpublished = killed and np.allclose(held[own_weights(i, round)], CHANGE, atol=1e-3)
            if (i, round) in self.uploads or unpublished:
                learned[own_weights(i, round)] = CHANGE
        assert np.allclose(held, learned, atol=1e-3), f"client {i}"

    def _pending_round(self, client: ClientLike) -> int:
        return -1 if client.pending is None else client.round

    def _update(self, i: int, round: int) -> np.ndarray:
        return Upload.open(self.uploads[i, round], TERMS).update.to_dense().astype(np.float64)
