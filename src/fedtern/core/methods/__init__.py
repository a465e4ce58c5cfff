"""Named methods: combinations of feedback rules, compressors, codecs and an aggregation.

To add a method, write a compressor (if it needs a new one) and a function, and list the function
in ``METHODS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from fedtern.core.methods.aggregate_text import with_aggregate
from fedtern.core.methods.aggregation import Aggregate, MajorityVote, Mean
from fedtern.core.methods.decaying import demo, sparseloco
from fedtern.core.methods.dense import eden, ef_signsgd, fedavg, grid, qsgd, sgd, signsgd, terngrad
from fedtern.core.methods.lowrank import atomo, powersgd, sketched, structured
from fedtern.core.methods.method import Link, Method, dense_link, lossless_link
from fedtern.core.methods.recipe import UNPUBLISHED, Publication, Recipe, bibtex, named_method
from fedtern.core.methods.robust import ClippedMean, CoordinateMedian, Krum, TrimmedMean
from fedtern.core.methods.short_runs import for_rounds
from fedtern.core.methods.sparse import (
    dgc,
    gradient_dropping,
    sbc,
    stc,
    stc_plus,
    strom,
    topk,
    variance,
)
from fedtern.core.methods.spec import MethodSpec
from fedtern.core.names import look_up

P = ParamSpec("P")

METHODS: dict[str, Recipe[Any]] = {
    recipe.name: recipe
    for recipe in (
        sgd,
        fedavg,
        stc,
        stc_plus,
        sbc,
        topk,
        gradient_dropping,
        dgc,
        strom,
        variance,
        signsgd,
        ef_signsgd,
        terngrad,
        qsgd,
        grid,
        atomo,
        powersgd,
        structured,
        sketched,
        eden,
        sparseloco,
        demo,
    )
}
"""Every method by its name on the wire, on disk and on the command line."""


def make_method(
    described: Mapping[str, Any], methods: Mapping[str, Recipe[Any]] | None = None
) -> Method:
    """Make a method from its name and parameters, as stored in experiments.

    Args:
        described: the method's parameters, and its name under the key "name".
        methods: all methods by name; by default ``METHODS``.

    >>> make_method({"name": "fedavg", "local_steps": 25}) == fedavg(25)
    True
    """
    parameters = {name: value for name, value in described.items() if name != "name"}
    known = METHODS if methods is None else methods
    return look_up(described["name"], known, "method")(**parameters)


def method_from_spec(spec: MethodSpec, methods: Mapping[str, Recipe[Any]] | None = None) -> Method:
    """Make the method of a spec from a peer or a file.

    Args:
        spec: the spec.
        methods: all methods by name; by default ``METHODS``.

    >>> method_from_spec(stc(p_up=1 / 100).spec) == stc(p_up=1 / 100)
    True

    Raises:
        ValueError: the method is not registered here, has another version, or does not take
            these parameters.

    """
    if not spec.name:
        raise ValueError("The method has no name; register it with register_method on both sides.")
    recipe = look_up(spec.name, METHODS if methods is None else methods, "method")
    if recipe.version != spec.version:
        raise ValueError(
            f"Method {spec.name!r} has version {recipe.version} here, the peer uses version"
            f" {spec.version}; install the same version on both sides."
        )
    try:
        return recipe(**spec.parameters)
    except TypeError as error:
        raise ValueError(f"Method {spec.name!r} cannot be made here: {error}") from error


def register_method(
    name: str, version: int = 1, publication: Publication = UNPUBLISHED, *, replace: bool = False
) -> Callable[[Callable[P, Method]], Recipe[P]]:
    """Register a method, so that it can be used by name everywhere; use it as a decorator.

    Args:
        name: the method's name on the wire, on disk and on the command line.
        version: raise it whenever the same parameters would give other messages.
        publication: citation and map of equations.
        replace: whether to replace an existing method of the same name.

    Raises:
        ValueError: the name is taken.

    """
    if name in METHODS and not replace:
        raise ValueError(
            f"Method {name!r} already exists; choose another name or pass replace=True."
        )

    def register(make: Callable[P, Method]) -> Recipe[P]:
        recipe = Recipe(make, name, version, publication)
        METHODS[name] = recipe
        return recipe

    return register


__all__ = [
    "METHODS",
    "Aggregate",
    "ClippedMean",
    "CoordinateMedian",
    "Krum",
    "Link",
    "MajorityVote",
    "Mean",
    "Method",
    "MethodSpec",
    "Publication",
    "Recipe",
    "TrimmedMean",
    "atomo",
    "bibtex",
    "demo",
    "dense_link",
    "dgc",
    "eden",
    "ef_signsgd",
    "fedavg",
    "for_rounds",
    "gradient_dropping",
    "grid",
    "lossless_link",
    "make_method",
    "method_from_spec",
    "named_method",
    "powersgd",
    "qsgd",
    "register_method",
    "sbc",
    "sgd",
    "signsgd",
    "sketched",
    "sparseloco",
    "stc",
    "stc_plus",
    "strom",
    "structured",
    "terngrad",
    "topk",
    "variance",
    "with_aggregate",
]
