"""The server's half of the protocol: bytes in, bytes out, no I/O."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedtern.core.codecs import NothingCodec
from fedtern.core.compressors import check_finite
from fedtern.core.errors import (
    DecodeError,
    DuplicateUpload,
    LateUpload,
    LocalProtocolError,
    RemoteProtocolError,
)
from fedtern.core.feedback import EMPTY, State
from fedtern.core.layout import Layout, Vector, own_vector, read_only
from fedtern.core.methods import Method
from fedtern.core.protocol import records
from fedtern.core.protocol.catchup import CatchUpBuilder
from fedtern.core.protocol.history import History
from fedtern.core.protocol.messages import Broadcast, Upload
from fedtern.core.protocol.replica import Replica
from fedtern.core.protocol.seeded_rng import check_seed, seeded_rng
from fedtern.core.protocol.terms import Head, Terms, first_stamp
from fedtern.core.snapshot import Snapshot, pack_blobs, unpack_blobs
from fedtern.core.updates import Sparse, Update
from fedtern.core.wire import Reader, check_id


@dataclass(frozen=True)
class _Accepted:
    update: Update
    num_examples: int
    data: bytes


class Server:
    """Collects a cohort's uploads and answers each round with one broadcast for everybody.

    Args:
        weights: the initial model, as one flat vector.
        method: what is sent each way; see ``fedtern.core.methods``.
        layout: the model's tensors; by default a single one.
        federation: a name that keeps messages of different federations apart.
        seed: of the random choices that some methods make.
        cohort: who may upload in the first round; None for anybody.
        cache_bytes: how much of past broadcasts to keep for clients that were away.

    """

    def __init__(
        self,
        weights: ArrayLike,
        method: Method,
        layout: Layout | None = None,
        *,
        federation: str = "",
        seed: int = 0,
        cohort: Iterable[int] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        vector = own_vector(weights, layout)
        self.terms = Terms(layout or Layout.flat(vector.size), method)
        check_finite(vector, self.terms.layout)
        self.federation = federation
        self.seed = check_seed(seed)
        self.round = 0
        self.cohort = None if cohort is None else frozenset(map(check_id, cohort))
        self._replica = Replica(vector, first_stamp(federation, vector))
        self._memory: State = EMPTY
        self._uploads: dict[int, _Accepted] = {}
        self._last_counted: dict[int, int] = {}  # client -> round
        default = 16 * vector.size + (1 << 20)
        self._history = History(default if cache_bytes is None else cache_bytes, self.terms)

    @property
    def weights(self) -> Vector:
        """The model: a view that changes with each round, and is read-only; copy it to keep it."""
        return read_only(self._replica.weights)

    @property
    def stamp(self) -> bytes:
        """The stamp of the history so far."""
        return self._replica.stamp

    @property
    def residual(self) -> Vector:
        """What the broadcasts so far have left out; read-only."""
        return read_only(self._memory.get("residual", np.zeros_like(self._replica.weights)))

    @property
    def uploaded(self) -> frozenset[int]:
        """The clients whose uploads of this round have been accepted."""
        return frozenset(self._uploads)

    def receive(self, client_id: int, data: bytes, num_examples: int = 1) -> None:
        """Accept an upload for this round, or refuse it and leave everything as it was."""
        client_id, data = check_id(client_id), bytes(data)
        try:
            upload = Upload.open(data, self.terms)
            self._admit(client_id, upload.head, data)
        except (DecodeError, RemoteProtocolError) as error:
            kind = type(error) if isinstance(error, RemoteProtocolError) else RemoteProtocolError
            raise kind(f"client {client_id}: {error}") from error
        if not 0 < operator.index(num_examples) < 1 << 53:
            raise RemoteProtocolError(
                f"client {client_id}: claims {num_examples} examples, expected 1 to 2**53 - 1"
            )
        self._uploads[client_id] = _Accepted(upload.update, operator.index(num_examples), data)

    def _admit(self, client_id: int, head: Head, data: bytes) -> None:
        if head.round != self.round:
            kind = LateUpload if head.round < self.round else RemoteProtocolError
            raise kind(f"upload is for round {head.round}, the server is at {self.round}")
        if (accepted := self._uploads.get(client_id)) is not None:
            if accepted.data != data:
                raise RemoteProtocolError(f"another upload of round {head.round} was accepted")
            raise DuplicateUpload(f"this upload of round {head.round} has already been accepted")
        head.check_history(self._replica.stamp, "the server")
        if self.cohort is not None and client_id not in self.cohort:
            raise RemoteProtocolError(f"not in the cohort of round {self.round}")

    def discard(self, client_id: int) -> None:
        """Drop an accepted upload of this round; its client learns that it did not count."""
        if self._uploads.pop(client_id, None) is None:
            raise LocalProtocolError(f"client {client_id} has no upload in round {self.round}")

    def finish_round(self, next_cohort: Iterable[int] | None = None) -> Broadcast:
        """Aggregate what has arrived, if anything, advance the model and return the broadcast."""
        cohort = None if next_cohort is None else frozenset(map(check_id, next_cohort))
        down, layout = self.terms.method.down, self.terms.layout
        memory, payload = self._memory, NothingCodec().encode(Sparse.empty(layout.size), layout)
        if self._uploads:
            delta, rng = self._combine(self.uploaded), seeded_rng(self.seed, 0, self.round)
            update, memory = down.memory.step(delta, memory, layout, rng)
            payload = down.codec.encode(update, layout)
        stamp = self._replica.stamp
        data = Broadcast.seal(stamp, self.round, payload, self.uploaded, cohort, self.terms)
        # The server, too, applies what it reads from the bytes.
        broadcast = Broadcast.open(data, self.terms)
        self._commit(broadcast, memory)
        return broadcast

    def _combine(self, counted: frozenset[int]) -> Vector:
        # By client, not by arrival: the sum's bits must not depend on the network.
        accepted = [self._uploads[client_id] for client_id in sorted(counted)]
        return self.terms.method.aggregate.combine(
            [a.update for a in accepted], [a.num_examples for a in accepted]
        )

    def _commit(self, broadcast: Broadcast, memory: State) -> None:
        self._memory = memory
        self._replica.advance(broadcast.update, broadcast.next_stamp)
        self._last_counted.update(dict.fromkeys(broadcast.counted, self.round))
        self._history.append(broadcast)
        self._uploads = {}
        self.cohort = broadcast.cohort
        self.round += 1

    def newest_broadcast(self, since: int) -> bytes | None:
        """The last round's broadcast, for a client that missed no other; None for any other."""
        newest = self._history.newest
        return newest.data if newest is not None and since == newest.round else None

    def catch_up(self, client_id: int, since: int) -> bytes:
        """What takes a client from round ``since`` to this one, in the fewest bytes.

        ``since`` is -1 for a client that has no weights at all.
        """
        client_id = check_id(client_id)
        if not -1 <= since <= self.round:
            raise RemoteProtocolError(
                f"client {client_id}: asks to catch up from round {since},"
                f" the server is at {self.round}"
            )
        known = self._history.counted(client_id, since)
        # Of a round that is no longer known: if a later upload counted, this one was settled.
        later = since >= 0 and self._last_counted.get(client_id, -1) >= since
        way = CatchUpBuilder(since, self.round, later if known is None else known, self.terms)
        return self._history.lead(way, self._replica)

    def snapshot(self) -> Snapshot:
        """Everything, for ``restore``."""
        uploads = [
            records.upload_record(i, a.data, a.num_examples) for i, a in self._uploads.items()
        ]
        blobs = {"history": self._history.data(), "uploads": uploads}
        arrays = {
            **self._replica.to_arrays(),
            **{f"memory.{name}": vector for name, vector in self._memory.items()},
            "counted.clients": np.array(list(self._last_counted), np.uint64),
            "counted.rounds": np.array(list(self._last_counted.values()), np.int64),
            **pack_blobs(blobs),
        }
        cohort = None if self.cohort is None else sorted(self.cohort)
        return Snapshot(arrays, {**self._identity, "round": self.round, "cohort": cohort})

    @property
    def _identity(self) -> dict[str, object]:
        names = {"kind": "server", "federation": self.federation}
        return {**names, "terms": self.terms.digest.hex(), "seed": self.seed}

    def restore(self, snapshot: Snapshot) -> None:
        """Become what ``snapshot`` was taken of."""
        snapshot.expect(self._identity)
        arrays, cohort, round = snapshot.arrays, snapshot.meta["cohort"], snapshot.meta["round"]
        replica, history = Replica.from_arrays(arrays), History(self._history.limit, self.terms)
        clients, rounds = arrays["counted.clients"].tolist(), arrays["counted.rounds"].tolist()
        for data in unpack_blobs(arrays, "history"):
            history.append(Broadcast.open(data, self.terms))
        self.round, self._replica, self._history = round, replica, history
        self.cohort = None if cohort is None else frozenset(cohort)
        self._memory = snapshot.copies("memory.")
        self._last_counted = dict(zip(clients, rounds, strict=True))
        self._uploads = {}
        for record in unpack_blobs(arrays, "uploads"):
            self.replay(record)

    def replay(self, record: bytes) -> None:
        """Do again what a record says was done."""
        tag, reader = record[:1], Reader(record[1:])
        if tag == records.UPLOAD:
            client_id, num_examples = reader.varint(), reader.varint()
            self.receive(client_id, reader.rest(), num_examples)
        elif tag == records.DISCARD:
            self.discard(reader.varint())
        elif tag == records.BROADCAST:
            self._finish_again(Broadcast.open(reader.rest(), self.terms))
        else:
            raise LocalProtocolError(f"unknown record {tag!r}")

    def _finish_again(self, broadcast: Broadcast) -> None:
        if broadcast.round != self.round or broadcast.counted != self.uploaded:
            raise LocalProtocolError(
                f"record of round {broadcast.round} with {sorted(broadcast.counted)}, the server is"
                f" at {self.round} with {sorted(self.uploaded)}"
            )
        broadcast.head.check_history(self._replica.stamp, "the server")
        memory = self._memory
        if broadcast.counted:
            delta = self._combine(broadcast.counted)
            memory = self.terms.method.down.memory.follow(delta, memory, broadcast.update)
        self._commit(broadcast, memory)
