"""The hot loops: compiled C, or NumPy where that is missing; both give the same results.

``native/`` has the C library, ``reference`` the same functions in NumPy, ``backend`` the choice.
"""

from fedtern.core.kernels.backend import describe_kernels, kernels
from fedtern.core.kernels.selection import add_top_k, first_unsafe, top_k
from fedtern.core.kernels.votes import count_votes

apply_sign_counts = kernels.apply_sign_counts
count_distinct = kernels.count_distinct
decode_gaps = kernels.decode_gaps
decode_levels = kernels.decode_levels
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
    "decode_gaps",
    "decode_levels",
    "describe_kernels",
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
