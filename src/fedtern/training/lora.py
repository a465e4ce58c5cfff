"""Low-rank adapters: train a few small matrices, and freeze the model around them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class LoraLinear(nn.Module):
    """A frozen linear layer plus a trained product of two small matrices (Hu et al., 2021).

    The output is ``base(x) + scale * up(down(x))``. ``up`` starts at zero, so that the new layer
    computes what the frozen one does.

    Args:
        base: the linear layer; its parameters are frozen.
        rank: number of rows of ``down`` and columns of ``up``.
        scale: factor of the product.

    Raises:
        ValueError: ``rank`` is not positive.

    """

    def __init__(self, base: nn.Linear, rank: int, scale: float = 2.0) -> None:
        super().__init__()
        if rank < 1:
            raise ValueError(f"rank must be at least 1, got {rank}")
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.scale = scale
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's output."""
        output: Tensor = self.base(inputs) + self.scale * self.up(self.down(inputs))
        return output


def add_lora(
    model: nn.Module,
    rank: int,
    scale: float = 2.0,
    where: Callable[[str], bool] = lambda _: True,
) -> nn.Module:
    """Freeze a model and add adapters to its linear layers, in place.

    Args:
        model: the model.
        rank: rank of the adapters.
        scale: factor of the adapters' output.
        where: returns whether the linear layer of a name gets an adapter.

    Returns:
        The model. Only its adapters are trainable.

    Raises:
        ValueError: no linear layer is chosen.

    >>> model = add_lora(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)), rank=1)
    >>> [name for name, p in model.named_parameters() if p.requires_grad]
    ['0.down.weight', '0.up.weight', '2.down.weight', '2.up.weight']
    """
    model.requires_grad_(requires_grad=False)
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and where(name)
    }
    if not layers:
        raise ValueError("the model has no linear layer to add an adapter to; check `where`")
    for name, layer in layers.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, LoraLinear(layer, rank, scale))
    return model
