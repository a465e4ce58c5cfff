"""What a federation is: the terms that a server offers and a node keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedtern.core.layout import Layout, Vector
from fedtern.core.methods import Method, MethodSpec, method_from_spec
from fedtern.core.protocol import Client

LONGEST_NAME = 64


@dataclass(frozen=True)
class FederationSpec:
    """A federation's name, its method and model, and under which key apps expect the model."""

    federation: str
    method: Method
    layout: Layout
    seed: int
    arrays: str
    in_context: bool  # whether states live in the context, as they do in a simulation

    def __post_init__(self) -> None:
        if len(self.federation.encode()) > LONGEST_NAME:
            raise ValueError(
                f"federation must be a name of at most {LONGEST_NAME} bytes, got"
                f" {self.federation!r}"
            )

    def to_json(self) -> dict[str, Any]:
        """The charter as JSON would have it."""
        return {
            "federation": self.federation,
            "method": self.method.spec.to_json(),
            "method_digest": self.method.digest.hex(),
            "layout": [[name, list(shape)] for name, shape in self._tensors()],
            "seed": self.seed,
            "arrays": self.arrays,
            "in_context": self.in_context,
        }

    def _tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        return list(zip(self.layout.names, self.layout.shapes, strict=True))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FederationSpec:
        """Undo ``to_json``.

        Raises:
            ValueError: the method is unknown here, or another one under the same name.

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
            str(values["federation"]),
            method,
            Layout(names, shapes),
            int(values["seed"]),
            str(values["arrays"]),
            bool(values["in_context"]),
        )

    def new_client(self, client_id: int, weights: Vector | None = None) -> Client:
        """A client of this federation, at its very beginning."""
        return Client(
            client_id,
            self.method,
            self.layout,
            weights,
            federation=self.federation,
            seed=self.seed,
        )

    def differs(self, other: FederationSpec) -> str | None:
        """In what another charter of the same name disagrees, with both values."""
        for what in ("method", "layout", "seed"):
            ours, theirs = getattr(self, what), getattr(other, what)
            if ours != theirs:
                return f"its {what} is {_short(ours)} here and {_short(theirs)} there"
        return None


def _short(value: Any) -> str:
    if not isinstance(value, Layout):
        return repr(value)
    shapes = ", ".join(f"{n} {s}" for n, s in zip(value.names, value.shapes, strict=True))
    return f"{value.size} values ({shapes if len(shapes) < 300 else shapes[:300] + ' …'})"
