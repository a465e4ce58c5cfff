"""The messages of a secure round. docs/format.md describes their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtern.core.codecs.golomb import decode_positions, encode_positions, read_count
from fedtern.core.envelope import SECURE, SECURE_STEPS, seal
from fedtern.core.errors import DecodeError, LateUpload, RemoteProtocolError
from fedtern.core.kernels import pack_levels, unpack_levels
from fedtern.core.layout import Layout
from fedtern.core.protocol.terms import Terms
from fedtern.core.wire import Reader, f32, ids, varint
from fedtern.privacy.secure.crypto import COMMITMENT_BYTES, KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES
from fedtern.privacy.secure.shamir import PRIME, SECRET_BYTES

SEALED_BYTES = 2 * SECRET_BYTES + TAG_BYTES
"""Length of the two shares of one client for one neighbour, encrypted."""

# The step of a message, its first byte after the header; the number in ``SECURE_STEPS``.
INVITATION = 0
KEYS = 1
ROSTER = 2
SHARES = 3
DELIVERY = 4
MASKED = 5
SURVIVORS = 6
REVEALED = 7

_LEADER = 1  # bit of an invitation
_SIGNED = 1  # bits of keys and rosters
_POSITIONED = 2


@dataclass(frozen=True)
class Context:
    """The round that messages and keys belong to.

    Attributes:
        terms: model and method of the federation.
        stamp: stamp of the history up to the round.
        round: the round.

    """

    terms: Terms
    stamp: bytes
    round: int

    @property
    def header(self) -> bytes:
        """The header of the round's messages, which is also a part of every key."""
        return self.terms.header(self.stamp, self.round)

    def seal(self, step: int, *body: bytes) -> bytes:
        """Make a message."""
        return seal(SECURE, self.header, bytes([step]), *body)

    def open(self, data: bytes, *steps: int) -> tuple[int, Reader]:
        """Check the envelope and the header of a message.

        Returns:
            The step of the message, and a reader of the bytes after it.

        Raises:
            DecodeError: the message is damaged or of another kind.
            LateUpload: the message is of an earlier round or step, such as a repeated one.
            RemoteProtocolError: the message is of another round, history, model or method, or of a
                step that is not expected now.

        """
        header, reader = self.terms.open(data, SECURE)
        if header.round != self.round:
            error = LateUpload if header.round < self.round else RemoteProtocolError
            raise error(f"message is for round {header.round}, this is round {self.round}")
        header.check_history(self.stamp, "this secure round")
        step = reader.byte()
        if step >= len(SECURE_STEPS):
            raise DecodeError(f"unknown step {step} of a secure round")
        if step not in steps:
            expected = " or ".join(SECURE_STEPS[s] for s in steps) or "no message"
            error = LateUpload if steps and step < min(steps) else RemoteProtocolError
            raise error(f"expected {expected}, got {SECURE_STEPS[step]}")
        return step, reader


@dataclass(frozen=True)
class PublicKeys:
    """The public keys of one client, for one round.

    Attributes:
        mask: key of the pairwise masks.
        channel: key that seals shares.
        signature: signature of both keys by the client's own key; empty without one.

    """

    mask: bytes
    channel: bytes
    signature: bytes = b""

    def signed_text(self, context: Context, client: int) -> bytes:
        """Return the text of the signature."""
        who = client.to_bytes(8, "little")
        return b"fedtern secure keys\0" + context.header + who + self.mask + self.channel

    def encode(self) -> bytes:
        """Encode the keys and the signature."""
        return self.mask + self.channel + self.signature

    @classmethod
    def read(cls, reader: Reader, is_signed: bool) -> PublicKeys:
        """Read what ``encode`` wrote."""
        mask = reader.take(KEY_BYTES)
        channel = reader.take(KEY_BYTES)
        return cls(mask, channel, reader.take(SIGNATURE_BYTES) if is_signed else b"")


Indices = NDArray[np.int64]


def encode_invitation(context: Context, is_leader: bool) -> bytes:
    """Encode the message that starts a client's round."""
    return context.seal(INVITATION, bytes([_LEADER * is_leader]))


def read_invitation(reader: Reader) -> bool:
    """Return whether the client chooses the positions of the round."""
    flags = _read_flags(reader, _LEADER)
    reader.end()
    return bool(flags & _LEADER)


def encode_keys(
    context: Context, keys: PublicKeys, commitment: bytes, positions: Indices | None
) -> bytes:
    """Encode a client's public keys, and the positions if it is the leader."""
    flags = _flags(bool(keys.signature), positions)
    tail = encode_position_list(positions, context.terms.layout)
    return context.seal(KEYS, flags, keys.encode(), commitment, tail)


@dataclass(frozen=True, eq=False)
class Advertised:
    """A client's keys.

    Attributes:
        keys: its public keys.
        commitment: commitment to the secret of its self mask.
        positions: the positions of the round, from the leader only.

    """

    keys: PublicKeys
    commitment: bytes
    positions: Indices | None


def read_keys(reader: Reader, layout: Layout, max_count: int) -> Advertised:
    """Read what ``encode_keys`` wrote."""
    flags = _read_flags(reader, _SIGNED | _POSITIONED)
    keys = PublicKeys.read(reader, bool(flags & _SIGNED))
    commitment = reader.take(COMMITMENT_BYTES)
    return Advertised(keys, commitment, _read_positions(reader, flags, layout, max_count))


@dataclass(frozen=True, eq=False)
class Roster:
    """The clients of a round, and the keys of one client's neighbours.

    Attributes:
        quantum: the distance of two levels.
        clients: ids of all clients that sent keys.
        keys: keys of the neighbours, in the order of their ids.
        positions: the leader's positions; None for pseudorandom ones.

    """

    quantum: float
    clients: tuple[int, ...]
    keys: tuple[PublicKeys, ...]
    positions: Indices | None

    def encode(self, context: Context) -> bytes:
        """Encode the message."""
        flags = _flags(bool(self.keys[0].signature), self.positions)
        tail = encode_position_list(self.positions, context.terms.layout)
        keys = b"".join(key.encode() for key in self.keys)
        return context.seal(ROSTER, flags, f32(self.quantum), ids(self.clients), keys, tail)


@dataclass(frozen=True)
class RosterHead:
    """The part of a roster that tells how many keys follow."""

    flags: int
    quantum: float
    clients: tuple[int, ...]


def read_roster_head(reader: Reader) -> RosterHead:
    """Read a roster up to the keys."""
    flags = _read_flags(reader, _SIGNED | _POSITIONED)
    return RosterHead(flags, reader.f32(), reader.ids())


def read_roster_tail(
    reader: Reader, head: RosterHead, degree: int, layout: Layout, max_count: int
) -> Roster:
    """Read the rest of a roster, with the keys of ``degree`` neighbours."""
    keys = tuple(PublicKeys.read(reader, bool(head.flags & _SIGNED)) for _ in range(degree))
    positions = _read_positions(reader, head.flags, layout, max_count)
    return Roster(head.quantum, head.clients, keys, positions)


def encode_shares(context: Context, sealed: Sequence[bytes]) -> bytes:
    """Encode sealed shares, in the order of the neighbours' ids."""
    return context.seal(SHARES, *sealed)


def read_shares(reader: Reader, degree: int) -> list[bytes]:
    """Read what ``encode_shares`` wrote."""
    sealed = [reader.take(SEALED_BYTES) for _ in range(degree)]
    reader.end()
    return sealed


def encode_delivery(context: Context, sealed: Sequence[bytes | None]) -> bytes:
    """Encode the shares of each neighbour; None for one that has sent none."""
    present = [share for share in sealed if share is not None]
    return context.seal(DELIVERY, _bits([share is not None for share in sealed]), *present)


def read_delivery(reader: Reader, degree: int) -> list[bytes | None]:
    """Read what ``encode_delivery`` wrote."""
    present = _read_bits(reader, degree)
    sealed = [reader.take(SEALED_BYTES) if has else None for has in present]
    reader.end()
    return sealed


def encode_masked(context: Context, values: NDArray[np.uint32], bits: int) -> bytes:
    """Encode masked values with a number of bits each."""
    packed = np.zeros((values.size * bits + 7) // 8, np.uint8)
    pack_levels(values.astype(np.int32), bits, packed)
    return context.seal(MASKED, packed.tobytes())


def read_masked(reader: Reader, count: int, bits: int) -> NDArray[np.uint32]:
    """Read what ``encode_masked`` wrote."""
    data = reader.bits(count * bits)
    reader.end()
    values = np.empty(count, np.int32)
    unpack_levels(np.concatenate([data, np.zeros(8, np.uint8)]), bits, values)
    return values.astype(np.uint32)


def encode_survivors(context: Context, survived: Sequence[bool]) -> bytes:
    """Encode which of a client's neighbours have uploaded."""
    return context.seal(SURVIVORS, _bits(survived))


def read_survivors(reader: Reader, count: int) -> list[bool]:
    """Read what ``encode_survivors`` wrote."""
    survived = _read_bits(reader, count)
    reader.end()
    return survived


def encode_revealed(context: Context, shares: Sequence[bytes]) -> bytes:
    """Encode one share for each neighbour."""
    return context.seal(REVEALED, *shares)


def read_revealed(reader: Reader, count: int) -> list[bytes]:
    """Read what ``encode_revealed`` wrote."""
    shares = [reader.take(SECRET_BYTES) for _ in range(count)]
    reader.end()
    if any(int.from_bytes(share, "little") >= PRIME for share in shares):
        raise DecodeError("a share is not below 2**127 - 1")
    return shares


def _flags(is_signed: bool, positions: Indices | None) -> bytes:
    return bytes([_SIGNED * is_signed | _POSITIONED * (positions is not None)])


def _read_flags(reader: Reader, known: int) -> int:
    flags = reader.byte()
    if flags & ~known:
        raise DecodeError(f"unknown flags {flags:#04x}")
    return flags


def encode_position_list(positions: Indices | None, layout: Layout) -> bytes:
    """Encode positions at the end of a message; nothing for pseudorandom ones."""
    if positions is None:
        return b""
    return varint(positions.size) + encode_positions(positions, layout.size)


def _read_positions(reader: Reader, flags: int, layout: Layout, max_count: int) -> Indices | None:
    if not flags & _POSITIONED:
        reader.end()
        return None
    count = read_count(reader, layout.size)
    if not 1 <= count <= max_count:
        raise DecodeError(f"expected from 1 to {max_count} positions, got {count}")
    return decode_positions(reader, count, layout.size)


def _bits(values: Sequence[bool]) -> bytes:
    return np.packbits(np.array(values, np.bool_), bitorder="little").tobytes()


def _read_bits(reader: Reader, count: int) -> list[bool]:
    bits = np.unpackbits(reader.bits(count), count=count, bitorder="little")
    return [bool(bit) for bit in bits]
