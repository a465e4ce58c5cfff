"""What a server and its nodes have to agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedtern.core.layout import Layout, Vector
from fedtern.core.methods import Method, MethodSpec, method_from_spec
from fedtern.core.protocol import Client

MAX_NAME_BYTES = 64


@dataclass(frozen=True)
class FederationSpec:
    """A federation, as a server offers it and a node remembers it.

    Attributes:
        federation: Name of the federation, by which nodes recognise it.
        method: What clients and server send.
        layout: Names and shapes of the model.
        seed: Random seed of the method.
        arrays_key: Key of the record in which apps expect the model.
        in_context: Whether states are in the node's context, as in a simulation.

    Raises:
        ValueError: The name is too long.

    """

    federation: str
    method: Method
    layout: Layout
    seed: int
    arrays_key: str
    in_context: bool

    def __post_init__(self) -> None:
        if len(self.federation.encode()) > MAX_NAME_BYTES:
            raise ValueError(
                f"federation must be a name of at most {MAX_NAME_BYTES} bytes, got"
                f" {self.federation!r}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the spec as values of JSON."""
        tensors = zip(self.layout.names, self.layout.shapes, strict=True)
        return {
            "federation": self.federation,
            "method": self.method.spec.to_json(),
            "method_digest": self.method.digest.hex(),
            "layout": [[name, list(shape)] for name, shape in tensors],
            "seed": self.seed,
            "arrays": self.arrays_key,
            "in_context": self.in_context,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FederationSpec:
        """Read the result of ``to_json``.

        Raises:
            KeyError: A value is missing.
            TypeError: A value has the wrong type.
            ValueError: The method is unknown here, or a different one has the same name.

        """
        spec = MethodSpec.from_json(values["method"])
        method = method_from_spec(spec)
        if method.digest.hex() != values["method_digest"]:
            raise ValueError(
                f"The server's method {spec.to_text()} has digest {values['method_digest']}, here"
                f" it has digest {method.digest.hex()}. Install the same version of fedtern on"
                " both sides; register a method that you have changed under a name of its own."
            )
        names = tuple(str(name) for name, _ in values["layout"])
        shapes = tuple(tuple(map(int, shape)) for _, shape in values["layout"])
        return cls(
            federation=str(values["federation"]),
            method=method,
            layout=Layout(names, shapes),
            seed=int(values["seed"]),
            arrays_key=str(values["arrays"]),
            in_context=bool(values["in_context"]),
        )

    def new_client(self, client_id: int, weights: Vector | None = None) -> Client:
        """Return a client of this federation that has not taken part yet.

        Args:
            client_id: Number of the client.
            weights: Initial weights; without them the client needs the whole model.

        """
        return Client(
            client_id,
            self.method,
            self.layout,
            weights,
            federation=self.federation,
            seed=self.seed,
        )

    def difference(self, other: FederationSpec) -> str | None:
        """Return how another spec contradicts this one, with both values; None if it does not.

        Both have the same name. No state depends on ``arrays_key`` and ``in_context``, so these may
        differ.
        """
        for name in ("method", "layout", "seed"):
            ours = getattr(self, name)
            theirs = getattr(other, name)
            if ours != theirs:
                return f"its {name} is {_short(ours)} here and {_short(theirs)} there"
        return None


def _short(value: Any) -> str:
    if not isinstance(value, Layout):
        return repr(value)
    shapes = ", ".join(f"{n} {s}" for n, s in zip(value.names, value.shapes, strict=True))
    return f"{value.size} values ({shapes if len(shapes) < 300 else shapes[:300] + ' …'})"
