"""Templates: how the named arrays of a model become a flat vector and carried tensors, and back.

A server or client works on one float32 vector. Applications have named arrays of any dtype: the
state dict of a PyTorch model, the parameters of a scikit-learn estimator, a record of Flower. A
template is made once from such arrays. It decides for each tensor:

- *trained*: compressed as a part of the flat vector, and handed back in its own dtype;
- *carried*: sent as it is, such as integers and the statistics of batch normalisation;
- *local*: never sent; each client keeps its own values;
- *fixed*: never sent and never changed, such as the frozen base of a model with adapters;
- *tied*: the same tensor as another one, under a second name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtern.core.carried import check_carried, same_bits
from fedtern.core.dtypes import (
    Overflow,
    check_dtype,
    from_float32,
    is_float,
    to_float32,
    to_storage,
)
from fedtern.core.layout import Carried, Layout, Rule, Vector

Arrays = Mapping[str, ArrayLike]
"""Arrays of a model by name: NumPy arrays, or objects that ``numpy.asarray`` takes."""

Carry = Literal["average", "latest", "local"]
"""How tensors that are not trained are combined; "local" keeps them on each client."""

Ties = bool | Literal["values"]
"""Which tensors are one tensor with several names.

True: arrays that share their memory, as the tied weights of a state dict do. "values": arrays that
have the same values, for models whose arrays were copied. False: none.
"""

Kind = Literal["trained", "carried", "local", "fixed", "tied"]

STATISTICS = (
    "*running_mean",
    "*running_var",
    "*num_batches_tracked",
    "*moving_mean",
    "*moving_variance",
    "*batch_stats*",
)
"""Names of the statistics of batch normalisation in PyTorch, Keras and Flax."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a model.

    Attributes:
        name: the tensor's name.
        shape: its shape.
        dtype: its dtype, such as "float32" or "bfloat16".
        kind: what happens to it.
        twin: the name of the tensor that it is tied to.

    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    twin: str = ""

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Others:
    """The arrays of a model that are not trained.

    Attributes:
        carried: the carried tensors.
        local: the tensors that stay on the client.

    """

    carried: dict[str, NDArray[Any]]
    local: dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Parts:
    """The arrays of a model, by what happens to them.

    Attributes:
        weights: all trained tensors as one vector.
        carried: the carried tensors.
        local: the tensors that stay on the client.

    """

    weights: Vector
    carried: dict[str, NDArray[Any]]
    local: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Template:
    """The tensors of a model, in the order in which the application names them.

    Args:
        tensors: the tensors.
        rule: how the server combines carried tensors.
        overflow: what to do with a weight that is too large for the dtype of its tensor.

    >>> arrays = {"weight": np.ones((2, 3), np.float16), "steps": np.array(7)}
    >>> template = Template.of(arrays)
    >>> template.layout.names, template.layout.carried[0].name
    (('weight',), 'steps')
    >>> parts = template.split(arrays)
    >>> template.join(parts.weights, parts.carried)["weight"].dtype
    dtype('float16')
    """

    tensors: tuple[Tensor, ...]
    rule: Rule = "average"
    overflow: Overflow = "refuse"
    # NumPy dtypes that only other packages define, such as the bfloat16 of ml_dtypes.
    _foreign_dtypes: Mapping[str, np.dtype[Any]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def of(
        cls,
        arrays: Arrays,
        *,
        carry: Carry = "average",
        carried: Sequence[str] = STATISTICS,
        trainable: Sequence[str] = ("*",),
        detect_ties: Ties = True,
        overflow: Overflow = "refuse",
        bfloat16: Sequence[str] = (),
    ) -> Template:
        """Make the template of named arrays.

        Args:
            arrays: the arrays of the initial model: NumPy arrays, or what ``numpy.asarray`` takes.
            carry: what happens to integers, booleans and the tensors in ``carried``.
            carried: patterns of the names of floating-point tensors that are not trained.
            trainable: patterns of the names of trained tensors. Other floating-point tensors are
                fixed.
            detect_ties: which tensors are one tensor with several names. By default those that
                share their memory. Equal values alone mean little: the layers of PyTorch's
                ``TransformerEncoder`` all start with the same ones. Pass "values" for a model with
                tied weights whose arrays were copied or loaded; tensors whose values are all the
                same are not tied then either.
            overflow: what to do with a weight that is too large for the dtype of its tensor:
                "refuse" or "saturate".
            bfloat16: patterns of the names of uint16 arrays that hold the bits of bfloat16 values,
                where no package defines that dtype. They are handed back as uint16.

        Raises:
            ValueError: nothing is trained, a pattern in ``trainable`` has no match, a dtype is not
                supported, or an option is unknown.

        """
        _check_options(carry, overflow, detect_ties)
        given = as_arrays(arrays)
        carried = _patterns(carried)
        trainable = _patterns(trainable)
        _check_matches("trainable", trainable, given)
        _check_matches("bfloat16", _patterns(bfloat16), given)
        kept: Kind = "local" if carry == "local" else "carried"
        twins: dict[object, str] = {}
        tensors = []
        foreign = {}
        for name, array in given.items():
            dtype = check_dtype(array.dtype.name, name)
            if dtype == "bfloat16":
                foreign[name] = array.dtype
            elif dtype == "uint16" and _matches(name, _patterns(bfloat16)):
                dtype = "bfloat16"
            kind: Kind = "trained"
            twin = ""
            if not is_float(dtype) or _matches(name, carried):
                kind = kept
            elif not _matches(name, trainable):
                kind = "fixed"
            elif detect_ties and (key := _identity(array, detect_ties)) is not None:
                twin = twins.setdefault(key, name)
                if twin == name:
                    twin = ""
                else:
                    kind = "tied"
            tensors.append(Tensor(name, tuple(array.shape), dtype, kind, twin))
        rule: Rule = "latest" if carry == "latest" else "average"
        template = cls(tuple(tensors), rule, overflow, foreign)
        if detect_ties is True:
            _check_fixed(template, given, twins)
        if not template.layout.names:
            names = ", ".join(given) or "none"
            raise ValueError(
                "the model has no floating-point tensor to train that matches"
                f" {', '.join(trainable)}; its tensors are: {names}"
            )
        return template

    @cached_property
    def layout(self) -> Layout:
        """The layout of the trained and carried tensors."""
        trained = self._of_kind("trained")
        carried = [Carried(t.name, t.shape, t.dtype, self.rule) for t in self._of_kind("carried")]
        return Layout(
            tuple(t.name for t in trained), tuple(t.shape for t in trained), tuple(carried)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return tuple(tensor.name for tensor in self.tensors)

    def _of_kind(self, *kinds: Kind) -> list[Tensor]:
        return [tensor for tensor in self.tensors if tensor.kind in kinds]

    def check(self, arrays: Arrays) -> None:
        """Check that arrays have the names, shapes and dtypes of the template.

        Raises:
            ValueError: a tensor has appeared, disappeared or changed, with both values; or a tied
                tensor differs from its twin.

        """
        self._checked(arrays)

    def split(self, arrays: Arrays) -> Parts:
        """Copy named arrays into a vector, carried tensors and local tensors.

        Raises:
            ValueError: a tensor has appeared, disappeared or changed, with both values; or a tied
                tensor differs from its twin.
            NonFiniteError: a value of a carried tensor is NaN or infinite.

        """
        given = self._checked(arrays)
        weights = np.empty(self.layout.size, np.float32)
        views = self.layout.unflatten(weights)
        with np.errstate(over="ignore"):  # values beyond float32 are refused later, by name
            for tensor in self._of_kind("trained"):
                array = given[tensor.name]
                is_wide = tensor.dtype != "bfloat16"
                views[tensor.name][...] = array if is_wide else to_float32(array, tensor.dtype)
        others = self.carried_and_local(given)
        return Parts(weights, others.carried, others.local)

    def carried_and_local(self, arrays: Arrays) -> Others:
        """Copy the carried and the local tensors, in the dtypes that hold their bits.

        Raises:
            NonFiniteError: a value of a carried tensor is NaN or infinite.

        """
        given = as_arrays(arrays)
        carried = {t.name: given[t.name] for t in self._of_kind("carried")}
        local = {t.name: to_storage(given[t.name], t.dtype) for t in self._of_kind("local")}
        return Others(check_carried(carried, self.layout), local)

    def _checked(self, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """Return NumPy arrays after checking that they fit the template."""
        given = as_arrays(arrays)
        known = {tensor.name for tensor in self.tensors}
        if missing := [t for t in self.tensors if t.name not in given]:
            first = missing[0]
            raise ValueError(
                f"tensor {first.name!r} ({first.dtype}, shape {first.shape}) is missing"
                f" ({len(missing)} of {len(self.tensors)} tensors are); return the arrays of the"
                " initial model"
            )
        if unknown := [name for name in given if name not in known]:
            array = given[unknown[0]]
            raise ValueError(
                f"tensor {unknown[0]!r} ({array.dtype}, shape {array.shape}) is not one of the"
                f" {len(self.tensors)} tensors of the initial model"
            )
        for tensor in self.tensors:
            array = given[tensor.name]
            if array.shape != tensor.shape:
                raise ValueError(
                    f"tensor {tensor.name!r} has shape {array.shape}, expected {tensor.shape}"
                )
            if array.dtype.name not in (tensor.dtype, _bits_name(tensor.dtype)):
                raise ValueError(
                    f"tensor {tensor.name!r} has dtype {array.dtype}, expected {tensor.dtype}"
                )
        for tensor in self._of_kind("tied"):
            ours = given[tensor.name]
            twin = given[tensor.twin]
            if _memory(ours) != _memory(twin) and not same_bits(ours, twin):
                raise ValueError(
                    f"tensor {tensor.name!r} was the same as {tensor.twin!r} in the initial model,"
                    " so both count as one tied tensor, but now they differ; pass"
                    " detect_ties=False if they are independent"
                )
        return given

    def delta(self, arrays: Arrays, weights: Vector) -> Vector:
        """Return the change from weights to named arrays.

        The change is relative to the weights as ``join`` returns them, in the dtypes of the
        tensors: arrays that training has not changed give zeros.

        Args:
            arrays: the arrays after training.
            weights: the weights before training.

        Raises:
            ValueError: a tensor has appeared, disappeared or changed, with both values; or a tied
                tensor differs from its twin.
            NonFiniteError: a weight before training is too large for the dtype of its tensor.

        """
        given = self._checked(arrays)
        out = np.empty(self.layout.size, np.float32)
        before = self.layout.unflatten(weights)
        views = self.layout.unflatten(out)
        with np.errstate(over="ignore", invalid="ignore"):
            for tensor in self._of_kind("trained"):
                after = given[tensor.name]
                start: NDArray[Any] = before[tensor.name]
                if tensor.dtype in ("float16", "bfloat16"):
                    rounded = from_float32(start, tensor.dtype, self.overflow, tensor.name)
                    start = to_float32(rounded, tensor.dtype)
                    after = to_float32(after, tensor.dtype)
                if tensor.dtype == "float64":
                    # Subtracted in float64, so that small changes are not rounded away.
                    views[tensor.name][...] = after - start
                else:
                    np.subtract(after, start, out=views[tensor.name])
        return out

    def join(
        self,
        weights: Vector,
        carried: Arrays | None = None,
        local: Arrays | None = None,
        fixed: Arrays | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return copies of all tensors by name, in their order and their own dtypes.

        Args:
            weights: the trained tensors as one vector.
            carried: the carried tensors.
            local: the local tensors.
            fixed: the fixed tensors.

        Raises:
            KeyError: a tensor is in none of the arguments.
            NonFiniteError: a weight is too large for the dtype of its tensor, and the template's
                ``overflow`` is "refuse".

        """
        trained = self.layout.unflatten(weights)
        others = {**(fixed or {}), **(local or {}), **(carried or {})}
        joined: dict[str, NDArray[Any]] = {}
        for tensor in self.tensors:
            if tensor.kind == "trained":
                array = from_float32(trained[tensor.name], tensor.dtype, self.overflow, tensor.name)
            elif tensor.kind == "tied":
                array = joined[tensor.twin].copy()
            else:
                array = np.array(others[tensor.name])
            foreign = self._foreign_dtypes.get(tensor.name)
            if foreign is not None and array.dtype == np.uint16:
                array = array.view(foreign)
            joined[tensor.name] = array
        return joined

    def fixed(self, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """Return copies of the fixed tensors."""
        return {t.name: np.array(arrays[t.name]) for t in self._of_kind("fixed")}

    def to_json(self) -> dict[str, Any]:
        """Return the template as values of JSON."""
        return {
            "tensors": [[t.name, list(t.shape), t.dtype, t.kind, t.twin] for t in self.tensors],
            "rule": self.rule,
            "overflow": self.overflow,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Template:
        """Read the result of ``to_json``.

        Raises:
            KeyError: a value is missing.
            TypeError: a value has the wrong type.
            ValueError: a value is unknown.

        """
        tensors = []
        for name, shape, dtype, kind, twin in values["tensors"]:
            if kind not in get_args(Kind):
                raise ValueError(f"tensor {name!r} has the unknown kind {kind!r}")
            tensors.append(
                Tensor(str(name), tuple(map(int, shape)), check_dtype(dtype, name), kind, str(twin))
            )
        rule = values["rule"]
        overflow = values["overflow"]
        if rule not in get_args(Rule) or overflow not in get_args(Overflow):
            raise ValueError(f"unknown rule {rule!r} or overflow {overflow!r}")
        return cls(tuple(tensors), cast(Rule, rule), cast(Overflow, overflow))


@dataclass
class NamedModel:
    """A template with the tensors that the protocol does not know.

    Attributes:
        template: the template.
        local: the local tensors of a client, or the initial ones on a server.
        fixed: the fixed tensors.

    """

    template: Template
    local: dict[str, NDArray[Any]]
    fixed: dict[str, NDArray[Any]]

    def join(self, weights: Vector, carried: Arrays) -> dict[str, NDArray[Any]]:
        """Return copies of all tensors by name, in their order and their own dtypes."""
        return self.template.join(weights, carried, self.local, self.fixed)


def as_arrays(arrays: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
    """Return the values as NumPy arrays, without a copy where they are arrays."""
    return {name: np.asarray(array) for name, array in arrays.items()}


def _patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    # A string is a sequence of strings, too: each character would be a pattern.
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_options(carry: Carry, overflow: Overflow, detect_ties: Ties) -> None:
    """Raise a ``ValueError`` for an unknown option."""
    if detect_ties not in (True, False, "values"):
        raise ValueError(f'detect_ties must be True, False or "values", got {detect_ties!r}')
    if carry not in get_args(Carry):
        raise ValueError(f'carry must be "average", "latest" or "local", got {carry!r}')
    if overflow not in get_args(Overflow):
        raise ValueError(f'overflow must be "refuse" or "saturate", got {overflow!r}')


def _check_matches(option: str, patterns: Sequence[str], names: Iterable[str]) -> None:
    """Raise a ``ValueError`` for a pattern that matches no name, such as a misspelt one."""
    names = list(names)
    for pattern in patterns:
        if names and not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise ValueError(f"no tensor matches {option}={pattern!r}; the tensors are: {shown}")


def _check_fixed(
    template: Template, arrays: Mapping[str, NDArray[Any]], trained: Mapping[object, str]
) -> None:
    """Raise a ``ValueError`` for a fixed tensor that shares its memory with a trained one."""
    for tensor in template.tensors:
        twin = trained.get(_memory(arrays[tensor.name])) if tensor.kind == "fixed" else None
        if twin is not None and tensor.size:
            raise ValueError(
                f"tensor {twin!r} is trained, but {tensor.name!r}, which is tied to it, matches no"
                " pattern in trainable; add its name"
            )


def _bits_name(dtype: str) -> str:
    """Return the NumPy dtype in which an application may give the bits of a tensor."""
    return "uint16" if dtype == "bfloat16" else dtype


def _memory(array: NDArray[Any]) -> object:
    """Return a key that is the same for arrays of the same memory."""
    return array.ctypes.data, array.shape, array.strides, array.dtype.name


def _identity(array: NDArray[Any], ties: Ties) -> object | None:
    """Return a key of tensors that are tied; None for a tensor that is tied to no other."""
    if not array.size:
        return None
    if ties != "values":
        return _memory(array)
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.size < 2 or (flat == flat[0]).all():
        return None
    key = hashlib.sha256(f"{array.dtype.name}{array.shape}".encode())
    key.update(flat.view(np.uint8).data)
    return key.digest()
