"""Compress tensors on their device, so that a GPU transfers only the k selected values."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedtern.core.arrays import check_axes, seal_array
from fedtern.core.compressors import SparseTernary, check_selected
from fedtern.core.layout import Layout
from fedtern.core.updates import Ternary


def compress_tensor(tensor: Tensor, p: float = 1 / 400) -> bytes:
    """Compress a tensor, selecting the largest values on its device.

    Only the k = max(floor(size * p), 1) largest values and their positions leave the device. For
    tensors on the CPU, ``fedtern.compress`` is faster.

    Args:
        tensor: a float32 tensor.
        p: the share of values to keep, in (0, 1].

    Returns:
        The same bytes as ``fedtern.compress(tensor.cpu().numpy(), p)``; ``fedtern.decompress``
        reads them.

    Raises:
        ValueError: the tensor is not float32, or an argument is out of range.
        NonFiniteError: a value is NaN, infinite or too large.

    >>> from fedtern import decompress
    >>> decompress(compress_tensor(torch.tensor([[0.5, -4.0], [2.0, 1.0]]), p=0.5))
    array([[ 0., -3.],
           [ 3.,  0.]], dtype=float32)
    """
    if tensor.dtype != torch.float32:
        raise ValueError(f"tensor must be float32, got {tensor.dtype}")
    layout = Layout(("array",), (check_axes(tuple(tensor.shape)),))
    compressor = SparseTernary(p)
    flat = tensor.detach().reshape(-1)
    kept = _largest(flat, compressor.count(layout.size))
    indices = kept.cpu().numpy()
    values = flat[kept].cpu().numpy()
    check_selected(values, indices, layout)
    # Ternarise the selected values: with p = 1, all of them are kept.
    rng = np.random.default_rng(0)  # required, but not used
    part = SparseTernary(1.0).compress(values, Layout.flat(values.size), rng)
    return seal_array(Ternary(layout.size, indices, part.signs, part.mus), layout)


def _largest(flat: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest magnitudes, like ``fedtern.core.kernels.top_k``.

    Ties go to the lowest index; zeros are left out.
    """
    # Compared as integers, NaN and infinity are largest on every device, and then rejected.
    magnitudes = flat.view(torch.int32) & 0x7FFFFFFF
    if k >= flat.numel():
        return magnitudes.nonzero()[:, 0]
    least = max(int(torch.topk(magnitudes, k, sorted=False).values.min()), 1)
    candidates = (magnitudes >= least).nonzero()[:, 0]
    ties = magnitudes[candidates] == least
    # Take the first ties; topk would take any of them.
    left = k - candidates.numel() + ties.sum()
    return candidates[~ties | (ties.cumsum(0) <= left)]
