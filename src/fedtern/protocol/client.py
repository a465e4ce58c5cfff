"""A client's half of the protocol: bytes in, bytes out, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedtern.compressors import check_finite
from fedtern.errors import LocalProtocolError, MissedRounds
from fedtern.layout import Layout, Vector, own_vector, read_only
from fedtern.methods import Method
from fedtern.protocol.catchup import Model, Replay, Sum, open_for_client
from fedtern.protocol.messages import Broadcast
from fedtern.protocol.replica import Replica
from fedtern.protocol.terms import Terms
from fedtern.protocol.uplink import Uplink
from fedtern.snapshot import Snapshot, pack_blobs, unpack_blobs
from fedtern.wire import check_id


class Client:
    """Follows the server's weights bit for bit and uploads what it learns on top of them.

    Args:
        client_id: what the server knows this client by.
        method: the same as the server's.
        layout: the model's tensors; may be left out where ``weights`` are given.
        weights: the federation's initial model; without it the client starts at round -1 and
            has to catch up before anything else.
        federation: the same as the server's.
        seed: of the random choices that some methods make.

    """

    def __init__(
        self,
        client_id: int,
        method: Method,
        layout: Layout | None = None,
        weights: ArrayLike | None = None,
        *,
        federation: str = "",
        seed: int = 0,
    ) -> None:
        if layout is None and weights is None:
            raise ValueError("give the layout or the initial weights: one of them tells the size")
        vector = None if weights is None else own_vector(weights, layout)
        if layout is None and vector is not None:
            layout = Layout.flat(vector.size)
        assert layout is not None  # one of the two was given
        self.client_id = check_id(client_id)
        self.terms = Terms(federation, layout, method)
        self.round = -1 if vector is None else 0
        self._replica = Replica(np.zeros(layout.size, np.float32) if vector is None else vector)
        # A pending upload is always one to the weights of this round.
        self._uplink = Uplink(client_id, self.terms, seed)
        check_finite(self._replica.weights, layout)

    @property
    def weights(self) -> Vector:
        """The model at this client's round; read-only."""
        if self.round < 0:
            raise LocalProtocolError("this client has no weights yet: catch up first")
        return read_only(self._replica.weights)

    @property
    def residual(self) -> Vector:
        """What the uploads so far have left out; read-only."""
        return read_only(self._uplink.memory.get("residual", np.zeros_like(self._replica.weights)))

    @property
    def pending(self) -> bytes | None:
        """The upload of this round, to be sent again where it may not have arrived."""
        return self._uplink.pending

    def send(self, new_weights: ArrayLike) -> bytes:
        """The upload that tells the server what training made of this round's weights."""
        if self.pending is not None:
            raise LocalProtocolError(
                f"client {self.client_id} has made its upload of round {self.round}: send"
                " `pending` again, or receive what followed"
            )
        new = np.asarray(new_weights, np.float32)
        if new.shape != self.weights.shape:
            raise ValueError(f"new_weights have shape {new.shape}, expected {self.weights.shape}")
        with np.errstate(over="ignore", invalid="ignore"):  # refused below, by name
            delta = new - self._replica.weights
        return self._uplink.send(delta, self.round)

    def receive(self, data: bytes) -> bool:
        """Take in a broadcast or a catch-up; False if it holds nothing new.

        Raises ``MissedRounds`` for one that starts from a later round than this client is at, or
        that cannot be applied from here: ask the server to ``catch_up(client_id, self.round)``.
        """
        message = open_for_client(data, self.terms)
        if isinstance(message, Broadcast):
            return self._follow([message])
        if isinstance(message, Replay):
            return self._follow(message.broadcasts)
        if message.round <= self.round:
            return False
        if message.since != self.round:
            raise MissedRounds(
                f"catch-up leads from round {message.since} to {message.round}, client"
                f" {self.client_id} is at {self.round}: ask for another"
            )
        self._uplink.settle(message.counted)
        if isinstance(message, Sum):
            self._replica.apply(message.update)
        else:
            self._become(message)
        self.round = message.round
        return True

    def _follow(self, broadcasts: Sequence[Broadcast]) -> bool:
        news = [broadcast for broadcast in broadcasts if broadcast.round >= self.round]
        if news and news[0].round != self.round:
            raise MissedRounds(
                f"broadcast is of round {news[0].round}, client {self.client_id} is at"
                f" {self.round}: catch up first"
            )
        for broadcast in news:
            self._uplink.settle(self.client_id in broadcast.counted)
            self._replica.apply(broadcast.update)
            self.round += 1
        return bool(news)

    def _become(self, model: Model) -> None:
        self._replica = Replica(model.weights)
        if model.votes is not None:
            self._replica.apply(model.votes)

    def snapshot(self) -> Snapshot:
        """Everything, for ``restore``."""
        arrays = {
            **self._replica.to_arrays(),
            **{f"memory.{name}": vector for name, vector in self._uplink.memory.items()},
            **pack_blobs({"pending": [] if self.pending is None else [self.pending]}),
        }
        meta = {"kind": "client", "terms": self.terms.digest.hex(), "client": self.client_id}
        return Snapshot(arrays, {**meta, "round": self.round})

    def restore(self, snapshot: Snapshot) -> None:
        """Become what ``snapshot`` was taken of."""
        snapshot.expect(kind="client", terms=self.terms.digest.hex(), client=self.client_id)
        pending = unpack_blobs(snapshot.arrays, "pending")
        self.round = snapshot.meta["round"]
        self._replica = Replica.from_arrays(snapshot.arrays)
        self._uplink.memory = snapshot.starting_with("memory.")
        self._uplink.pending = pending[0] if pending else None

    def replay(self, record: bytes) -> None:
        """Receive once more what was received before."""
        self.receive(record)
