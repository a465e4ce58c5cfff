"""Identity of a method, independent of Python names.

A spec consists of a registered name, a version and parameters. Peers compare specs; stores, run
directories and federations store them. The digest in the header of each message also covers the
parts of the method, by their stable ids (``part_id``). So a method that was changed by hand has
another digest than the registered one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

Parameter = bool | int | float | str | None
_SCALARS = (bool, int, float, str)


@dataclass(frozen=True)
class MethodSpec:
    """Name, version and parameters of a method.

    A method gets a new version whenever the same parameters would give other messages.

    >>> spec = MethodSpec("stc", 1, {"p_up": 0.01})
    >>> spec.to_text()
    '{"name":"stc","parameters":{"p_up":0.01},"version":1}'
    >>> MethodSpec.from_json(spec.to_json()) == spec
    True
    """

    name: str
    version: int = 1
    parameters: Mapping[str, Parameter] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as a JSON object."""
        return {"name": self.name, "version": self.version, "parameters": dict(self.parameters)}

    def to_text(self) -> str:
        """Return the spec as canonical JSON: the same text for the same method."""
        return canonical_json(self.to_json())

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MethodSpec:
        """Undo ``to_json``.

        Raises:
            ValueError: the values are not those of a spec.

        """
        if not isinstance(values, Mapping):
            raise ValueError(f"A method spec must be a JSON object, got {values!r}.")
        name = values.get("name")
        version = values.get("version")
        parameters = values.get("parameters")
        if not isinstance(name, str):
            raise ValueError(f"A method spec needs a name, got {name!r}.")
        if isinstance(version, bool) or not isinstance(version, int):
            raise ValueError(f"Method {name!r} needs a whole number as version, got {version!r}.")
        if not isinstance(parameters, Mapping):
            raise ValueError(f"Method {name!r} needs an object of parameters, got {parameters!r}.")
        for key, value in parameters.items():
            if value is not None and not isinstance(value, _SCALARS):
                raise ValueError(f"Parameter {key} of method {name!r} cannot be {value!r}.")
        return cls(name, version, dict(parameters))


def canonical_json(values: Any) -> str:
    """Write JSON with sorted keys and no spaces, so that equal values give equal text."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def describe_part(part: Any) -> dict[str, Any]:
    """Describe a part of a method by its stable id and its fields.

    Args:
        part: a compressor, feedback rule, codec or aggregation: a dataclass with a ``part_id``.
            Fields with the metadata ``later`` are left out while they have their default, so that
            methods from before the field keep their digest.

    Raises:
        ValueError: the part has no ``part_id``, or a field that JSON cannot hold.

    """
    part_id = getattr(part, "part_id", None)
    if not isinstance(part_id, str) or not is_dataclass(part) or isinstance(part, type):
        raise ValueError(
            f"{part!r} cannot be part of a method: it must be a dataclass with a part_id, a name"
            ' that never changes, such as part_id: ClassVar[str] = "top_k"'
        )
    described: dict[str, Any] = {"id": part_id}
    for part_field in fields(part):
        value = getattr(part, part_field.name)
        if part_field.metadata.get("later") and value == part_field.default:
            continue
        if value is None or isinstance(value, _SCALARS):
            described[part_field.name] = value
        else:
            described[part_field.name] = describe_part(value)
    return described
