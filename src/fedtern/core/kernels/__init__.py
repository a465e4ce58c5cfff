"""Kernels: the hot loops, in compiled C or in NumPy, with the same results bit by bit.

The C library is in ``native/``, the same functions in NumPy in ``reference``. ``backend`` chooses
between them. An *entry* is the change of one position by one update; its *key* is
``position * num_updates + update_index``.
"""

from fedtern.core.kernels.backend import describe_kernels, is_fallback, kernels
from fedtern.core.kernels.selection import add_top_k, first_unsafe, summarize, top_k
from fedtern.core.kernels.votes import count_votes

apply_sign_counts = kernels.apply_sign_counts
count_distinct = kernels.count_distinct
decode_adaptive = kernels.decode_adaptive
decode_gaps = kernels.decode_gaps
decode_levels = kernels.decode_levels
encode_adaptive = kernels.encode_adaptive
encode_gaps = kernels.encode_gaps
encode_levels = kernels.encode_levels
fill_ternary_values = kernels.fill_ternary_values
measure_keys = kernels.measure_keys
measure_levels = kernels.measure_levels
nest_keys = kernels.nest_keys
pack_levels = kernels.pack_levels
random_signs = kernels.random_signs
rotate = kernels.rotate
sample_positions = kernels.sample_positions
scatter_add = kernels.scatter_add
scatter_signs = kernels.scatter_signs
sort_entries = kernels.sort_entries
split_keys = kernels.split_keys
unpack_levels = kernels.unpack_levels

__all__ = [
    "add_top_k",
    "apply_sign_counts",
    "count_distinct",
    "count_votes",
    "decode_adaptive",
    "decode_gaps",
    "decode_levels",
    "describe_kernels",
    "encode_adaptive",
    "encode_gaps",
    "encode_levels",
    "fill_ternary_values",
    "first_unsafe",
    "is_fallback",
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
    "summarize",
    "top_k",
    "unpack_levels",
]
