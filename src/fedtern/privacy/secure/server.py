"""The server side of a secure round: bytes in, bytes out, no I/O and no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtern.core.envelope import SECURE_STEPS
from fedtern.core.errors import LocalProtocolError, RemoteProtocolError
from fedtern.core.layout import Vector
from fedtern.core.updates import Sparse
from fedtern.core.wire import Reader, check_id, u64
from fedtern.privacy.secure import crypto, messages, shamir
from fedtern.privacy.secure.graph import MIN_CLIENTS, Graph
from fedtern.privacy.secure.masks import add_pairwise_mask, mask_key_pair, self_mask
from fedtern.privacy.secure.messages import Advertised, Context, Indices, Roster
from fedtern.privacy.secure.method import check_secure_terms, random_positions
from fedtern.privacy.secure.states import SERVER_TRANSITIONS, ServerEvent, ServerState


@dataclass(frozen=True, eq=False)
class SecureSum:
    """All that the server learns from the uploads of a round.

    Attributes:
        counted: the clients in the sum.
        positions: the positions of the round.
        levels: the sum of the clients' levels at each position.
        quantum: the distance of two levels.
        clipped: the share of values that were clipped, over all clients.

    """

    counted: frozenset[int]
    positions: Indices
    levels: NDArray[np.int64]
    quantum: float
    clipped: float

    def mean(self, size: int) -> Vector:
        """Return the mean of the clients' updates, for ``Server.finish_round(delta=...)``."""
        values = self.levels * (self.quantum / len(self.counted))
        return Sparse(size, self.positions, values.astype(np.float32)).to_dense()


class _RoundFailed(Exception):
    """The round must be abandoned."""

    def __init__(self, event: ServerEvent, reason: str) -> None:
        super().__init__(reason)
        self.event = event


class SecureServer:
    """One secure round on the server.

    Send the messages of ``invitations``, pass answers to ``receive``, and call ``advance`` when
    ``awaited`` is empty or a deadline has passed. It ends the phase and returns the messages of the
    next one. Clients that have not answered drop out. The round ends in the state ``FINISHED``,
    with a ``result``, or ``ABANDONED``, without one.

    Args:
        context: model, method, history and round of the server.
        cohort: the clients of the round.
        quantum: the distance of two levels; see ``next_quantum``.

    Attributes:
        state: the state of the round.
        awaited: the clients that have not answered in this phase.
        result: the sum, in the state ``FINISHED``.
        reason: why the round was abandoned.

    Raises:
        ValueError: the cohort has fewer than three clients, or the model has carried tensors.

    """

    def __init__(self, context: Context, cohort: Iterable[int], quantum: float) -> None:
        rule = check_secure_terms(context.terms)
        clients = Graph.of(map(check_id, cohort), context.header).clients
        self.state = ServerState.ADVERTISING
        self.awaited: set[int] = set(clients)
        self.result: SecureSum | None = None
        self.reason = ""
        self._context = context
        self._rule = rule
        self._quantum = quantum
        self._cohort = clients
        # The leader changes from round to round, and does not depend on any data.
        self.leader = clients[context.round % len(clients)] if rule.positions == "leader" else None
        self._answers: dict[int, bytes] = {}  # of this phase
        self._advertised: dict[int, Advertised] = {}
        self._public_keys: set[bytes] = set()  # of all clients that sent keys
        self._graph: Graph | None = None
        self._positions: Indices = np.empty(0, np.int64)
        self._sealed: dict[int, dict[int, bytes]] = {}  # by sender and recipient
        self._sum: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._uploaded: set[int] = set()
        self._revealed: dict[int, dict[int, bytes]] = {}  # by owner and holder

    def invitations(self) -> dict[int, bytes]:
        """Return the first message to each client of the cohort."""
        return {
            client: messages.encode_invitation(self._context, client == self.leader)
            for client in self._cohort
        }

    def receive(self, client_id: int, data: bytes) -> None:
        """Accept a client's message of this phase, or raise and change nothing.

        The same message of the same client is accepted again and changes nothing.

        Raises:
            DecodeError: the bytes are malformed.
            RemoteProtocolError: the client is not expected to send this message now.

        """
        if self._answers.get(client_id) == data:
            return
        expected = {
            ServerState.ADVERTISING: messages.KEYS,
            ServerState.SHARING: messages.SHARES,
            ServerState.COLLECTING: messages.MASKED,
            ServerState.UNMASKING: messages.REVEALED,
        }.get(self.state)
        step, reader = self._context.open(data, *([] if expected is None else [expected]))
        if client_id not in self.awaited:
            name = SECURE_STEPS[step]
            raise RemoteProtocolError(f"client {client_id} is not expected to send {name} now")
        if step == messages.KEYS:
            self._accept_keys(client_id, reader)
        elif step == messages.SHARES:
            neighbours = self._neighbours(client_id)
            sealed = messages.read_shares(reader, len(neighbours))
            self._sealed[client_id] = dict(zip(neighbours, sealed, strict=True))
        elif step == messages.MASKED:
            self._sum += messages.read_masked(reader, self._sum.size, self._sum_bits)
            self._uploaded.add(client_id)
        else:
            partners = self._partners(client_id)
            shares = messages.read_revealed(reader, len(partners))
            for owner, share in zip(partners, shares, strict=True):
                self._revealed.setdefault(owner, {})[client_id] = share
        self._answers[client_id] = data
        self.awaited.discard(client_id)

    def _accept_keys(self, client_id: int, reader: Reader) -> None:
        layout = self._context.terms.layout
        found = messages.read_keys(reader, layout, self._rule.count(layout))
        if found.positions is not None and client_id != self.leader:
            raise RemoteProtocolError(f"client {client_id} sends positions, but does not lead")
        # All neighbours of a client with other keys would leave the round.
        public = {found.keys.mask, found.keys.channel}
        if len(public) < 2 or public & self._public_keys:
            raise RemoteProtocolError(
                f"client {client_id} sends a public key that is known already"
            )
        for key in public:
            crypto.check_public_key(key)
        self._public_keys |= public
        self._advertised[client_id] = found

    @property
    def _the_graph(self) -> Graph:
        assert self._graph is not None  # since the roster
        return self._graph

    @property
    def _sum_bits(self) -> int:
        return self._the_graph.sum_bits(self._rule.levels)

    def _neighbours(self, client_id: int) -> tuple[int, ...]:
        return self._the_graph.neighbours(client_id)

    def _partners(self, client_id: int) -> list[int]:
        """Return the neighbours that share masks with a client: those that sent shares."""
        return [other for other in self._neighbours(client_id) if other in self._sealed]

    def advance(self) -> dict[int, bytes]:
        """End the phase; return the messages of the next phase by client.

        Raises:
            LocalProtocolError: the round is over.

        """
        steps = {
            ServerState.ADVERTISING: self._make_rosters,
            ServerState.SHARING: self._deliver_shares,
            ServerState.COLLECTING: self._name_survivors,
            ServerState.UNMASKING: self._unmask,
        }
        if self.state not in steps:
            raise LocalProtocolError(f"this secure round is {self.state.name.lower()}")
        try:
            outgoing = steps[self.state]()
            event = ServerEvent.ENOUGH
        except _RoundFailed as failure:
            outgoing = {}
            event = failure.event
            self.reason = str(failure)
        self.state = SERVER_TRANSITIONS[self.state][event]
        self.awaited = set(outgoing)
        self._answers = {}
        return outgoing

    def _make_rosters(self) -> dict[int, bytes]:
        clients = sorted(self._advertised)
        if len(clients) < MIN_CLIENTS:
            raise _RoundFailed(ServerEvent.TOO_FEW, f"only {len(clients)} clients sent keys")
        graph = Graph.of(clients, self._context.header)
        leader = self._advertised.get(self.leader) if self.leader is not None else None
        chosen = None if leader is None else leader.positions
        self._graph = graph
        self._positions = (
            random_positions(self._context.terms, self._context.round) if chosen is None else chosen
        )
        self._sum = np.zeros(self._positions.size + 1, np.uint32)
        # Signatures are forwarded if all clients sign.
        is_signed = all(found.keys.signature for found in self._advertised.values())
        keys = {client: found.keys for client, found in self._advertised.items()}
        if not is_signed:
            keys = {c: messages.PublicKeys(key.mask, key.channel) for c, key in keys.items()}
        return {
            client: Roster(
                self._quantum,
                graph.clients,
                tuple(keys[other] for other in graph.neighbours(client)),
                chosen,
            ).encode(self._context)
            for client in clients
        }

    def _deliver_shares(self) -> dict[int, bytes]:
        threshold = self._the_graph.threshold
        # A client with too few neighbours could not be unmasked: it drops out, and with it the
        # shares that it sent.
        while True:
            weak = [c for c in self._sealed if len(self._partners(c)) < threshold]
            if not weak:
                break
            for client in weak:
                del self._sealed[client]
        if len(self._sealed) < MIN_CLIENTS:
            raise _RoundFailed(
                ServerEvent.TOO_FEW, f"fewer than {MIN_CLIENTS} clients have enough neighbours"
            )
        return {
            client: messages.encode_delivery(
                self._context,
                [self._sealed.get(other, {}).get(client) for other in self._neighbours(client)],
            )
            for client in self._sealed
        }

    def _name_survivors(self) -> dict[int, bytes]:
        threshold = self._the_graph.threshold
        for owner in self._sealed:
            alive = sum(other in self._uploaded for other in self._partners(owner))
            if alive < threshold:
                raise _RoundFailed(
                    ServerEvent.TOO_FEW,
                    f"only {alive} neighbours of client {owner} have uploaded; its masks need"
                    f" {threshold}",
                )
        return {
            client: messages.encode_survivors(
                self._context, [other in self._uploaded for other in self._partners(client)]
            )
            for client in sorted(self._uploaded)
        }

    def _recover(self, owner: int) -> bytes:
        """Return the secret of a client, from the shares that its neighbours have revealed."""
        graph = self._the_graph
        shares = self._revealed.get(owner, {})
        if len(shares) < graph.threshold:
            raise _RoundFailed(
                ServerEvent.TOO_FEW,
                f"{len(shares)} shares of client {owner} were revealed; its masks need"
                f" {graph.threshold}",
            )
        holders = sorted(shares)[: graph.threshold]
        return shamir.combine({graph.point(holder): shares[holder] for holder in holders})

    def _unmask(self) -> dict[int, bytes]:
        context = self._context
        total = self._sum.copy()
        for owner in sorted(self._sealed):
            secret = self._recover(owner)
            found = self._advertised[owner]
            if owner in self._uploaded:
                expected = crypto.commit(secret, context.header + u64(owner))
                if found.commitment != expected:
                    raise _wrong_share(owner)
                total -= self_mask(secret, context, owner, total.size)
                continue
            pair = mask_key_pair(secret, context)
            if pair.public != found.keys.mask:
                raise _wrong_share(owner)
            # The survivors' masks against this client are still in the sum. Its own masks against
            # them, which it never sent, are their opposites.
            for other in self._partners(owner):
                if other in self._uploaded:
                    public = self._advertised[other].keys.mask
                    add_pairwise_mask(total, pair, public, context, owner, other)
        self.result = self._decode(total)
        return {}

    def _decode(self, total: NDArray[np.uint32]) -> SecureSum:
        bits = self._sum_bits
        half = 1 << (bits - 1)
        values = (total & np.uint32((1 << bits) - 1)).astype(np.int64)
        values[values >= half] -= 1 << bits
        limit = self._rule.levels * len(self._uploaded)
        clipped = int(values[-1])
        if np.abs(values).max() > limit or clipped < 0:
            raise _RoundFailed(
                ServerEvent.WRONG_SUM, f"the sum of {len(self._uploaded)} clients is out of range"
            )
        return SecureSum(
            frozenset(self._uploaded), self._positions, values[:-1], self._quantum, clipped / limit
        )


def _wrong_share(owner: int) -> _RoundFailed:
    return _RoundFailed(ServerEvent.WRONG_SHARE, f"a share of client {owner} is wrong")
