"""Compiled loops. Nothing is compiled before its first call; the result is cached on disk."""

from fedtern.kernels.bitstream import (
    decode_gaps,
    encode_gaps,
    pack_levels,
    unpack_levels,
)
from fedtern.kernels.scatter import scatter_add, tally
from fedtern.kernels.selection import first_unsafe, top_k

__all__ = [
    "decode_gaps",
    "encode_gaps",
    "first_unsafe",
    "pack_levels",
    "scatter_add",
    "tally",
    "top_k",
    "unpack_levels",
]
