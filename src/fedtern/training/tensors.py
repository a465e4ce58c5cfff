"""Compressing tensors where they are, so that a GPU hands over k values and not all of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedtern.core.arrays import check_axes, seal_array
from fedtern.core.compressors import SparseTernary, check_selected, count_kept
from fedtern.core.layout import Layout
from fedtern.core.updates import Ternary


def compress_tensor(tensor: Tensor, p: float = 1 / 400) -> bytes:
    """Byte for byte ``fedtern.compress(tensor.cpu().numpy(), p)``, selected on the tensor's device.

    Only float32. What leaves the device is the k = max(floor(size * p), 1) largest values and where
    they are; ``fedtern.decompress`` reads the message. On the CPU, ``fedtern.compress`` is faster.

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
    kept = _largest(flat, count_kept(layout.size, compressor.p))
    indices, values = kept.cpu().numpy(), flat[kept].cpu().numpy()
    check_selected(values, indices, layout)
    # All of what is kept, ternarised as it would have been among the rest.
    rng = np.random.default_rng(0)  # never asked
    part = SparseTernary(1.0).compress(values, Layout.flat(values.size), rng)
    return seal_array(Ternary(layout.size, indices, part.signs, part.mus), layout)


def _largest(flat: Tensor, k: int) -> Tensor:
    """Like ``fedtern.core.kernels.top_k``: ties go to the lowest index, zeros are left out."""
    # As integers, so that NaN and infinity come first on every device and are refused.
    spelled = flat.view(torch.int32) & 0x7FFFFFFF
    if k >= flat.numel():
        return spelled.nonzero()[:, 0]
    least = max(int(torch.topk(spelled, k, sorted=False).values.min()), 1)
    candidates = (spelled >= least).nonzero()[:, 0]
    ties = spelled[candidates] == least
    # The first ties fill up what the larger ones leave; topk would take any of them.
    left = k - candidates.numel() + ties.sum()
    return candidates[~ties | (ties.cumsum(0) <= left)]
