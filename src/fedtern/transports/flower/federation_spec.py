"""What a server and its nodes have to agree on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from fedtern.core.carried import NO_VALUES, Values
from fedtern.core.layout import Carried, Layout, Vector
from fedtern.core.methods import Method, MethodSpec, method_from_spec
from fedtern.core.protocol import Client
from fedtern.core.protocol.initial import Precision
from fedtern.core.template import Template

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
        template: The model's arrays as apps see them; None if the nodes need only the layout.
        initial: How precisely new clients download the initial model.
        session: Token of a federation that ends with the run; empty if it may continue in another
            run. Nodes discard states with another token.
        weights_digest: Digest of the initial weights, for nodes that have these already.

    Raises:
        ValueError: The name is too long.

    """

    federation: str
    method: Method
    layout: Layout
    seed: int
    arrays_key: str
    in_context: bool
    template: Template | None = None
    initial: Precision = "exact"
    session: str = ""
    weights_digest: str = ""

    def __post_init__(self) -> None:
        if len(self.federation.encode()) > MAX_NAME_BYTES:
            raise ValueError(
                f"federation must be a name of at most {MAX_NAME_BYTES} bytes, got"
                f" {self.federation!r}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the spec as values of JSON."""
        tensors = zip(self.layout.names, self.layout.shapes, strict=True)
        model: dict[str, Any] = {
            "layout": [[name, list(shape)] for name, shape in tensors],
            "carried": [[t.name, list(t.shape), t.dtype, t.rule] for t in self.layout.carried],
        }
        if self.template is not None:
            model = {"template": self.template.to_json()}
        return {
            "federation": self.federation,
            "method": self.method.spec.to_json(),
            "method_digest": self.method.digest.hex(),
            **model,
            "seed": self.seed,
            "arrays": self.arrays_key,
            "in_context": self.in_context,
            "initial": self.initial,
            "session": self.session,
            "weights_digest": self.weights_digest,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FederationSpec:
        """Read the result of ``to_json``, also that of version 0.1.0 in the state of a node.

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
        template = Template.from_json(values["template"]) if "template" in values else None
        initial = values.get("initial", "exact")
        if initial not in get_args(Precision):
            raise ValueError(f"unknown precision {initial!r} of the initial model")
        return cls(
            federation=str(values["federation"]),
            method=method,
            layout=_read_layout(values) if template is None else template.layout,
            seed=int(values["seed"]),
            arrays_key=str(values["arrays"]),
            in_context=bool(values["in_context"]),
            template=template,
            initial=cast(Precision, initial),
            session=str(values.get("session", "")),
            weights_digest=str(values.get("weights_digest", "")),
        )

    def new_client(
        self, client_id: int, weights: Vector | None = None, carried: Values = NO_VALUES
    ) -> Client:
        """Return a client of this federation that has not taken part yet.

        Args:
            client_id: Number of the client.
            weights: Initial weights; without them the client needs the whole model.
            carried: Initial values of the carried tensors.

        """
        return Client(
            client_id,
            self.method,
            self.layout,
            weights,
            carried=carried if weights is not None else None,
            initial=self.initial,
            federation=self.federation,
            seed=self.seed,
        )

    def difference(self, other: FederationSpec) -> str | None:
        """Return how another spec contradicts this one, with both values; None if it does not.

        Both have the same name. Only values that the state of a client depends on are compared.
        """
        for name in ("method", "layout", "seed"):
            ours = getattr(self, name)
            theirs = getattr(other, name)
            if ours != theirs:
                first = _first_difference(ours, theirs) if isinstance(ours, Layout) else ""
                return f"its {name} is {_short(ours)} here and {_short(theirs)} there{first}"
        return None


def digest_of(weights: Vector, carried: Values) -> str:
    """Return a digest of initial weights and carried tensors."""
    digest = hashlib.sha256(weights.data)
    for name in sorted(carried):
        digest.update(name.encode() + b"\0" + carried[name].tobytes())
    return digest.hexdigest()


def _read_layout(values: Mapping[str, Any]) -> Layout:
    names = tuple(str(name) for name, _ in values["layout"])
    shapes = tuple(tuple(map(int, shape)) for _, shape in values["layout"])
    carried = tuple(
        Carried(str(name), tuple(map(int, shape)), str(dtype), rule)
        for name, shape, dtype, rule in values.get("carried", [])
    )
    return Layout(names, shapes, carried)


def _tensors(layout: Layout) -> dict[str, str]:
    """Return a description of each tensor by its name."""
    trained = zip(layout.names, layout.shapes, strict=True)
    return {name: f"trained {shape}" for name, shape in trained} | {
        tensor.name: f"carried {tensor.shape} {tensor.dtype}" for tensor in layout.carried
    }


def _first_difference(ours: Layout, theirs: Layout) -> str:
    here, there = _tensors(ours), _tensors(theirs)
    for name in {**here, **there}:
        if here.get(name) != there.get(name):
            values = here.get(name, "missing"), there.get(name, "missing")
            return f"; tensor {name!r} is {values[0]} here and {values[1]} there"
    return "; the tensors are in another order"


def _short(value: Any) -> str:
    if isinstance(value, Method):
        return value.spec.to_text()
    if not isinstance(value, Layout):
        return repr(value)
    tensors = [f"{n} {s}" for n, s in zip(value.names, value.shapes, strict=True)]
    tensors += [f"{tensor.name} {tensor.shape} {tensor.dtype}" for tensor in value.carried]
    text = ", ".join(tensors)
    return f"{value.size} values ({text if len(text) < 300 else text[:300] + ' …'})"
