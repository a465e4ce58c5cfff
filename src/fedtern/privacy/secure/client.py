"""The client side of a secure round: bytes in, bytes out, no I/O."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtern.core.errors import LocalProtocolError, RemoteProtocolError
from fedtern.core.wire import Reader, check_id, u64
from fedtern.privacy.secure import crypto, messages, shamir
from fedtern.privacy.secure.graph import Graph
from fedtern.privacy.secure.masks import add_pairwise_mask, mask_key_pair, pair_context, self_mask
from fedtern.privacy.secure.messages import Context, Indices, PublicKeys
from fedtern.privacy.secure.method import AtPositions, random_positions, shared_positions_of
from fedtern.privacy.secure.states import CLIENT_TRANSITIONS, ClientEvent, ClientState


@dataclass(frozen=True)
class Identity:
    """Signing keys, which stop a server from inventing clients.

    Attributes:
        private: this client's private Ed25519 key, 32 bytes.
        known: the public keys of all clients, from a source that the server does not control.

    """

    private: bytes
    known: Mapping[int, bytes]


class SecureClient:
    """One client in one secure round.

    Call ``advertise`` after training, pass the server's messages to ``receive``, and call ``mask``
    in the state ``READY``. Make a new object for each round: keys are never used twice.

    Args:
        client_id: this client's id.
        context: model, method, history and round of the client.
        invitation: the server's message that starts the round.
        identity: signing keys; None to trust the server with the public keys.
        entropy: returns the given number of random bytes.

    Attributes:
        state: the state of the round.
        is_leader: whether this client chooses the positions.
        invitation: the server's message that started the round.

    Raises:
        DecodeError: the invitation is malformed.
        RemoteProtocolError: the invitation is of another round or history.

    """

    def __init__(
        self,
        client_id: int,
        context: Context,
        invitation: bytes,
        *,
        identity: Identity | None = None,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        rule = shared_positions_of(context.terms.method)
        if rule is None:
            raise ValueError(f"method {context.terms.method.name!r} has no secure aggregation")
        _, reader = context.open(invitation, messages.INVITATION)
        self.client_id = check_id(client_id)
        self.is_leader = messages.read_invitation(reader)
        self.invitation = invitation
        self.state = ClientState.INVITED
        self._context = context
        self._rule = rule
        self._identity = identity
        self._entropy = entropy
        self._mask_secret = shamir.random_secret(entropy)
        self._self_secret = shamir.random_secret(entropy)
        self._mask_keys = mask_key_pair(self._mask_secret, context)
        self._channel_keys = crypto.KeyPair.from_private(entropy(crypto.KEY_BYTES))
        self._graph: Graph | None = None
        self._compressor: AtPositions | None = None
        self._neighbours: tuple[int, ...] = ()  # those that take part in the masks, later on
        self._keys: dict[int, PublicKeys] = {}
        self._channels: dict[int, bytes] = {}
        self._shares: dict[int, tuple[bytes, bytes]] = {}  # of each neighbour: mask key, self mask
        self._last: tuple[bytes, bytes] | None = None  # the last message received and its answer

    @property
    def compressor(self) -> AtPositions:
        """The compressor of this round, once the roster has arrived."""
        if self._compressor is None:
            raise LocalProtocolError(f"positions are not known in state {self.state.name}")
        return self._compressor

    def advertise(self, positions: Indices | None = None) -> bytes:
        """Return the message with this client's public keys.

        Args:
            positions: the positions of the leader's largest values, ascending; only for the leader.
                Without any, the positions of the round are pseudorandom.

        Raises:
            LocalProtocolError: the client has sent its keys already.
            ValueError: this client is not the leader.

        """
        target = self._target(ClientEvent.TRAINED)
        if positions is not None and not self.is_leader:
            raise ValueError(f"client {self.client_id} is not the leader of this round")
        keys = PublicKeys(self._mask_keys.public, self._channel_keys.public)
        if self._identity is not None:
            text = keys.signed_text(self._context, self.client_id)
            signature = crypto.sign(self._identity.private, text)
            keys = PublicKeys(keys.mask, keys.channel, signature)
        commitment = crypto.commit(self._self_secret, self._context.header + u64(self.client_id))
        self.state = target
        if positions is not None and not positions.size:
            positions = None
        return messages.encode_keys(self._context, keys, commitment, positions)

    def receive(self, data: bytes) -> bytes | None:
        """Read a message from the server and return the answer to it, if there is one.

        A message that was received before gets the same answer again.

        Raises:
            DecodeError: the bytes are malformed.
            RemoteProtocolError: the message is forbidden in this state, or asks for too much. The
                client must leave the round then; it answers nothing.

        """
        if self._last is not None and self._last[0] == data:
            return self._last[1] or None
        expected = {
            ClientState.ADVERTISED: messages.ROSTER,
            ClientState.SHARED: messages.DELIVERY,
            ClientState.UPLOADED: messages.SURVIVORS,
        }
        steps = [expected[self.state]] if self.state in expected else []
        step, reader = self._context.open(data, *steps)
        if step == messages.ROSTER:
            answer = self._read_roster(reader)
            self.state = self._target(ClientEvent.ROSTER)
        elif step == messages.DELIVERY:
            self._read_delivery(messages.read_delivery(reader, len(self._neighbours)))
            answer = b""
            self.state = self._target(ClientEvent.DELIVERY)
        else:
            answer = self._reveal(messages.read_survivors(reader, len(self._neighbours)))
            self.state = self._target(ClientEvent.SURVIVORS)
        self._last = (data, answer)
        return answer or None

    def _target(self, event: ClientEvent) -> ClientState:
        try:
            return CLIENT_TRANSITIONS[self.state][event]
        except KeyError:
            raise LocalProtocolError(
                f"client {self.client_id} is in state {self.state.name}: {event.name.lower()} is"
                " not possible"
            ) from None

    def _read_roster(self, reader: Reader) -> bytes:
        layout = self._context.terms.layout
        head = messages.read_roster_head(reader)
        if self.client_id not in head.clients:
            raise RemoteProtocolError(f"client {self.client_id} is not in the roster")
        try:
            graph = Graph.of(head.clients, self._context.header)
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from None
        neighbours = graph.neighbours(self.client_id)
        count = self._rule.count(layout)
        roster = messages.read_roster_tail(reader, head, len(neighbours), layout, count)
        if roster.positions is not None and self._rule.positions == "random":
            raise RemoteProtocolError("positions of this method are pseudorandom, got others")
        keys = dict(zip(neighbours, roster.keys, strict=True))
        self._check_keys(keys)
        channels = {
            other: crypto.derive_key(
                self._channel_keys.agree(key.channel),
                "channel",
                pair_context(self._context, self.client_id, other),
            )
            for other, key in keys.items()
        }
        positions = roster.positions
        if positions is None:
            positions = random_positions(self._context.terms, self._context.round)
        self._graph = graph
        self._neighbours = neighbours
        self._keys = keys
        self._channels = channels
        self._compressor = self._rule.at(positions, roster.quantum)
        return self._seal_shares(graph)

    def _check_keys(self, keys: Mapping[int, PublicKeys]) -> None:
        """Check that keys are different, and signed if this client has an identity."""
        public = [self._mask_keys.public, self._channel_keys.public]
        public += [part for key in keys.values() for part in (key.mask, key.channel)]
        if len(set(public)) < len(public):
            raise RemoteProtocolError("two public keys of this round are the same")
        if self._identity is None:
            return
        for other, key in keys.items():
            known = self._identity.known.get(other)
            text = key.signed_text(self._context, other)
            if known is None or not crypto.is_signed(known, key.signature, text):
                raise RemoteProtocolError(f"the keys of client {other} have no valid signature")

    def _seal_shares(self, graph: Graph) -> bytes:
        points = [graph.point(other) for other in self._neighbours]
        split = [
            shamir.split(secret, points, graph.threshold, self._entropy)
            for secret in (self._mask_secret, self._self_secret)
        ]
        sealed = [
            crypto.seal_share(
                self._channels[other],
                self.client_id < other,
                mask_share + self_share,
                pair_context(self._context, self.client_id, other),
            )
            for other, mask_share, self_share in zip(self._neighbours, *split, strict=True)
        ]
        return messages.encode_shares(self._context, sealed)

    def _read_delivery(self, sealed: list[bytes | None]) -> None:
        assert self._graph is not None
        shares = {}
        for other, text in zip(self._neighbours, sealed, strict=True):
            if text is not None:
                context = pair_context(self._context, self.client_id, other)
                opened = crypto.open_share(
                    self._channels[other], other < self.client_id, text, context
                )
                size = shamir.SECRET_BYTES
                shares[other] = (opened[:size], opened[size:])
        if len(shares) < self._graph.threshold:
            raise RemoteProtocolError(
                f"only {len(shares)} neighbours take part; a secure sum needs"
                f" {self._graph.threshold}"
            )
        self._shares = shares
        self._neighbours = tuple(shares)

    def mask(self, levels: NDArray[np.int64], clipped: int) -> bytes:
        """Return the masked upload.

        Args:
            levels: this client's level at each position, from ``compressor.to_levels``.
            clipped: the level that reports the share of clipped values, from ``clipped_level``.

        Raises:
            LocalProtocolError: the client is not in the state ``READY``: an upload is masked only
                once, because the difference of two uploads would reveal values.
            ValueError: a level is out of range.

        """
        target = self._target(ClientEvent.MASKED)
        assert self._graph is not None
        values = np.append(levels, clipped)
        if values.size != self.compressor.positions.size + 1:
            raise ValueError(f"expected {self.compressor.positions.size} levels, got {levels.size}")
        if np.abs(values).max() > self._rule.levels:
            raise ValueError(f"levels must be at most {self._rule.levels}, got {values}")
        bits = self._graph.sum_bits(self._rule.levels)
        masked = values.astype(np.int32).view(np.uint32)
        masked = masked + self_mask(self._self_secret, self._context, self.client_id, values.size)
        for other in self._neighbours:
            add_pairwise_mask(
                masked,
                self._mask_keys,
                self._keys[other].mask,
                self._context,
                self.client_id,
                other,
            )
        masked &= np.uint32((1 << bits) - 1)
        self.state = target
        return messages.encode_masked(self._context, masked, bits)

    def _reveal(self, survived: list[bool]) -> bytes:
        """Return a share of the self mask of each survivor, and of the mask key of each other.

        Never both for the same client: the server could remove all masks of its upload.
        """
        assert self._graph is not None
        if sum(survived) < self._graph.threshold:
            raise RemoteProtocolError(
                f"only {sum(survived)} neighbours have uploaded; a secure sum needs"
                f" {self._graph.threshold}"
            )
        shares = [
            self._shares[other][1 if has else 0]
            for other, has in zip(self._neighbours, survived, strict=True)
        ]
        return messages.encode_revealed(self._context, shares)


def clipped_level(x: NDArray[np.float32], compressor: AtPositions, rng: np.random.Generator) -> int:
    """Return the share of values that are clipped as a level, rounded at random.

    Args:
        x: the residual plus the change of the weights.
        compressor: the compressor of the round.
        rng: generator of the rounding.

    """
    limit = compressor.quantum * compressor.levels
    share = float(np.mean(np.abs(x[compressor.positions]) > limit)) * compressor.levels
    return int(share) + int(rng.random() < share - int(share))
