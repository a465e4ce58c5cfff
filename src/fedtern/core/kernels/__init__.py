"""Compiled loops. Each is compiled on its first call; the compiled code is cached on disk."""

from fedtern.core.kernels.bitstream import (
    decode_gaps,
    encode_gaps,
    pack_levels,
    unpack_levels,
)
from fedtern.core.kernels.elias import decode_levels, encode_levels, measure_levels
from fedtern.core.kernels.scatter import apply_sign_counts, count_votes, scatter_add, scatter_signs
from fedtern.core.kernels.seeded import random_signs, rotate, sample_positions
from fedtern.core.kernels.selection import add_top_k, first_unsafe, top_k
from fedtern.core.kernels.sparse_merge import (
    count_distinct,
    fill_ternary_values,
    measure_keys,
    nest_keys,
    sort_entries,
    split_keys,
)

__all__ = [
    "add_top_k",
    "apply_sign_counts",
    "count_distinct",
    "count_votes",
    "decode_gaps",
    "decode_levels",
    "encode_gaps",
    "encode_levels",
    "fill_ternary_values",
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
    "sort_entries",
    "split_keys",
    "top_k",
    "unpack_levels",
]
