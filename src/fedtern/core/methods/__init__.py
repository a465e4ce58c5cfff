"""Famous methods as compositions: what is sent each way, how, and what is remembered.

Adding one is a compressor, a function and a row of ``METHODS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedtern.core.methods import literature as papers
from fedtern.core.methods.dense import ef_signsgd, fedavg, qsgd, sgd, signsgd, terngrad
from fedtern.core.methods.lowrank import atomo, powersgd, sketched, structured
from fedtern.core.methods.method import Link, Method, dense_link, lossless_link
from fedtern.core.methods.recipe import OWN, Publication, Recipe, bibtex
from fedtern.core.methods.sparse import dgc, gradient_dropping, sbc, stc, strom, topk, variance

METHODS: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(sgd, papers.SGD),
        Recipe(fedavg, papers.FEDAVG),
        Recipe(stc, papers.STC),
        Recipe(sbc, papers.SBC),
        Recipe(topk, papers.STC),
        Recipe(gradient_dropping, papers.GRADIENT_DROPPING),
        Recipe(dgc, papers.DGC),
        Recipe(strom, papers.STROM),
        Recipe(variance, papers.VARIANCE),
        Recipe(signsgd, papers.SIGNSGD),
        Recipe(ef_signsgd, papers.EF_SIGNSGD),
        Recipe(terngrad, papers.TERNGRAD),
        Recipe(qsgd, papers.QSGD),
        Recipe(atomo, papers.ATOMO),
        Recipe(powersgd, papers.POWERSGD),
        Recipe(structured, papers.KONECNY),
        Recipe(sketched, papers.KONECNY),
    )
}
"""Every method by the name it has on the command line."""


def make_method(described: Mapping[str, Any]) -> Method:
    """The method of a name and parameters, as experiments and their records have it.

    >>> make_method({"name": "fedavg", "local_steps": 25}) == fedavg(25)
    True
    """
    parameters = {name: value for name, value in described.items() if name != "name"}
    return METHODS[described["name"]](**parameters)


def register_method(
    make: Callable[..., Method], publication: Publication = OWN, *, replace: bool = False
) -> Callable[..., Method]:
    """Make a method known by its function's name, wherever a method is named; returns ``make``."""
    recipe = Recipe(make, publication)
    if recipe.name in METHODS and not replace:
        raise ValueError(
            f"there is a method {recipe.name!r} already: choose another name or pass replace=True"
        )
    METHODS[recipe.name] = recipe
    return make


__all__ = [
    "METHODS",
    "Link",
    "Method",
    "Publication",
    "Recipe",
    "atomo",
    "bibtex",
    "dense_link",
    "dgc",
    "ef_signsgd",
    "fedavg",
    "gradient_dropping",
    "lossless_link",
    "powersgd",
    "qsgd",
    "register_method",
    "sbc",
    "sgd",
    "signsgd",
    "sketched",
    "stc",
    "strom",
    "structured",
    "terngrad",
    "topk",
    "variance",
]
