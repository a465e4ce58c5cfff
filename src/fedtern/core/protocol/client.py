"""A client's half of the protocol: bytes in, bytes out, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import ArrayLike

from fedtern.core.compressors import check_finite
from fedtern.core.errors import LocalProtocolError, MissedRounds
from fedtern.core.layout import Layout, Vector, own_vector, read_only
from fedtern.core.methods import Method
from fedtern.core.protocol.catchup import Model, Replay, Sum, open_for_client
from fedtern.core.protocol.messages import Broadcast
from fedtern.core.protocol.replica import Replica
from fedtern.core.protocol.terms import Terms, first_stamp
from fedtern.core.protocol.uplink import Uplink
from fedtern.core.snapshot import Snapshot, pack_blobs, unpack_blobs
from fedtern.core.wire import check_id


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
        self.federation = federation
        self.terms = Terms(layout, method)
        self.round = -1 if vector is None else 0
        if vector is None:
            vector = np.zeros(layout.size, np.float32)
        self._replica = Replica(vector, first_stamp(federation, vector))
        # A pending upload is always one to the weights of this round.
        self._uplink = Uplink(self.client_id, self.terms, seed)
        check_finite(self._replica.weights, layout)

    @property
    def weights(self) -> Vector:
        """The model at this client's round: a view that changes with it, and is read-only."""
        if self.round < 0:
            raise LocalProtocolError("this client has no weights yet: catch up first")
        return read_only(self._replica.weights)

    @property
    def stamp(self) -> bytes:
        """The stamp of the history that this client has followed."""
        return self._replica.stamp

    @property
    def residual(self) -> Vector:
        """What the uploads so far have left out; read-only."""
        return read_only(self._uplink.memory.get("residual", np.zeros_like(self._replica.weights)))

    @property
    def pending(self) -> bytes | None:
        """The upload of this round, to be sent again where it may not have arrived."""
        return self._uplink.pending

    def send(self, new_weights: ArrayLike, moments: ArrayLike | None = None) -> bytes:
        """The upload that tells the server what training made of this round's weights.

        ``moments`` are of use to ``variance`` only: for each weight, the sum over examples (or
        groups of them) of the square of what each one contributed to its change.
        """
        self._refuse_another()
        with np.errstate(over="ignore", invalid="ignore"):  # refused later, by name
            new = self._fitting(new_weights, "new_weights")
            return self.send_delta(new - self._replica.weights, moments)

    def send_delta(self, delta: ArrayLike, moments: ArrayLike | None = None) -> bytes:
        """The same for one who knows by how much training has changed this round's weights."""
        self._refuse_another()
        with np.errstate(over="ignore"):
            own = np.array(self._fitting(delta, "delta"))  # a memory may write to it
        update, memory = self._uplink.compress(own, self.round, self._checked(moments))
        return self._uplink.seal(update, memory, self._replica.stamp, self.round)

    def _refuse_another(self) -> None:
        if self.pending is not None:
            raise LocalProtocolError(
                f"client {self.client_id} has made its upload of round {self.round}: send"
                " `pending` again, or receive what followed"
            )

    def _fitting(self, values: ArrayLike, name: str) -> Vector:
        vector = np.asarray(values, np.float32)
        if vector.shape != self.weights.shape:
            raise ValueError(f"{name} have shape {vector.shape}, expected {self.weights.shape}")
        return vector

    def _checked(self, moments: ArrayLike | None) -> Vector | None:
        if moments is None:
            return None
        with np.errstate(over="ignore"):
            vector = np.asarray(moments, np.float32)
        if vector.shape != self.weights.shape:
            raise ValueError(f"moments have shape {vector.shape}, expected {self.weights.shape}")
        if not ((vector >= 0) & (vector < np.inf)).all():
            raise ValueError(
                "moments must be finite as float32 and not negative, got"
                f" {vector.min(initial=0)} to {vector.max(initial=0)}"
            )
        return vector

    def restriction(self) -> Callable[[Vector], None] | None:
        """What makes a flat gradient, in place, one that this round's upload can tell of.

        None for all methods but ``structured``, whose clients train in a random subspace.
        """
        return self._uplink.restriction(self.round)

    def receive(self, data: bytes) -> bool:
        """Take in a broadcast or a catch-up; False if it holds nothing new.

        Raises ``MissedRounds`` for one that starts from a later round than this client is at, or
        that cannot be applied from here: ask the server to ``catch_up(client_id, self.round)``.
        """
        message = open_for_client(bytes(data), self.terms)
        if isinstance(message, Broadcast):
            return self._follow([message], message)
        if message.head.round <= self.round:
            return False
        if isinstance(message, Replay):
            # Everything has been read once, and refused if need be, before anything is applied.
            return self._follow(message.opened(self.terms), message)
        if message.since != self.round:
            raise MissedRounds(
                f"catch-up leads from round {message.since} to {message.head.round}, client"
                f" {self.client_id} is at {self.round}: ask for another"
            )
        if isinstance(message, Sum):
            message.head.check_history(self._replica.stamp, f"client {self.client_id}")
            self._uplink.settle(message.counted)
            self._replica.advance(message.update, message.stamp)
        else:
            self._uplink.settle(message.counted)
            self._become(message)
        self.round = message.head.round
        return True

    def _follow(self, broadcasts: Iterable[Broadcast], message: Broadcast | Replay) -> bool:
        first = message.round if isinstance(message, Broadcast) else message.since
        if first > self.round or self.round < 0:
            raise MissedRounds(
                f"message starts from round {first}, client {self.client_id} is at"
                f" {self.round}: catch up first"
            )
        news = False
        for broadcast in broadcasts:
            if broadcast.round == self.round:
                broadcast.head.check_history(self._replica.stamp, f"client {self.client_id}")
                self._uplink.settle(self.client_id in broadcast.counted)
                self._replica.advance(broadcast.update, broadcast.next_stamp)
                self.round += 1
                news = True
        return news

    def _become(self, model: Model) -> None:
        self._replica = Replica(model.weights, model.head.stamp)
        if model.votes is not None:
            self._replica.apply(model.votes)

    def snapshot(self) -> Snapshot:
        """Everything, for ``restore``."""
        arrays = {
            **self._replica.to_arrays(),
            **{f"memory.{name}": vector for name, vector in self._uplink.memory.items()},
            **pack_blobs({"pending": [] if self.pending is None else [self.pending]}),
        }
        return Snapshot(arrays, {**self._identity, "round": self.round})

    @property
    def _identity(self) -> dict[str, object]:
        names = {"kind": "client", "federation": self.federation, "client": self.client_id}
        return {**names, "terms": self.terms.digest.hex(), "seed": self._uplink.seed}

    def restore(self, snapshot: Snapshot) -> None:
        """Become what ``snapshot`` was taken of."""
        snapshot.expect(self._identity)
        pending = unpack_blobs(snapshot.arrays, "pending")
        round, replica = snapshot.meta["round"], Replica.from_arrays(snapshot.arrays)
        self.round, self._replica = round, replica
        self._uplink.memory = snapshot.copies("memory.")
        self._uplink.pending = pending[0] if pending else None

    def replay(self, record: bytes) -> None:
        """Receive once more what was received before."""
        self.receive(record)
