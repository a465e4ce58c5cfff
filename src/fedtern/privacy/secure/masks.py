"""The masks of uploads: one of the client itself, and one with each neighbour."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtern.core.wire import u64
from fedtern.privacy.secure.crypto import KeyPair, derive_key, key_stream
from fedtern.privacy.secure.messages import Context


def mask_key_pair(secret: bytes, context: Context) -> KeyPair:
    """Return the keys of pairwise masks, which follow from a secret of 127 bits."""
    return KeyPair.from_private(derive_key(secret, "mask key", context.header))


def pair_context(context: Context, one: int, other: int) -> bytes:
    """Return the context of a key that two clients share."""
    return context.header + u64(min(one, other)) + u64(max(one, other))


def self_mask(secret: bytes, context: Context, client: int, count: int) -> NDArray[np.uint32]:
    """Return the mask that only shares of its secret remove."""
    return key_stream(derive_key(secret, "self mask", context.header + u64(client)), count)


def add_pairwise_mask(
    out: NDArray[np.uint32], keys: KeyPair, public: bytes, context: Context, one: int, other: int
) -> None:
    """Add the mask of client ``one`` against ``other``, in place.

    The lower id adds the mask and the higher one subtracts it, so that it cancels in the sum.
    """
    key = derive_key(keys.agree(public), "pairwise mask", pair_context(context, one, other))
    stream = key_stream(key, out.size)
    if one < other:
        out += stream
    else:
        out -= stream
