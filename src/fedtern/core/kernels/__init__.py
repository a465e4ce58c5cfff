"""Compiled loops. Nothing is compiled before its first call; the result is cached on disk."""

from fedtern.core.kernels.bitstream import (
    decode_gaps,
    encode_gaps,
    pack_levels,
    unpack_levels,
)
from fedtern.core.kernels.elias import decode_levels, encode_levels, measure_levels
from fedtern.core.kernels.scatter import count_votes, scatter_add, scatter_signs, tally
from fedtern.core.kernels.seeded import random_signs, rotate, sample_positions
from fedtern.core.kernels.selection import add_top_k, first_unsafe, top_k
from fedtern.core.kernels.sparse_merge import (
    count_touched,
    measure_keys,
    nest_keys,
    sign_touches,
    sparse_merge,
    split_keys,
)

__all__ = [
    "add_top_k",
    "count_touched",
    "count_votes",
    "decode_gaps",
    "decode_levels",
    "encode_gaps",
    "encode_levels",
    "first_unsafe",
    "measure_keys",
    "measure_levels",
    "nest_keys",
    "pack_levels",
    "random_signs",
    "rotate",
    "sample_positions",
    "scatter_add",
    "scatter_signs",
    "sign_touches",
    "sparse_merge",
    "split_keys",
    "tally",
    "top_k",
    "unpack_levels",
]
