"""Import the public names of a package on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def import_on_first_use(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return a ``__getattr__`` for a package whose import should be quick.

    Args:
        package: the package's name.
        modules: the module that defines each public name.

    Returns:
        A function that imports a name, keeps it as an attribute of the package, and returns it.

    >>> from fractions import Fraction
    >>> get = import_on_first_use("fedtern.core.lazy", {"Fraction": "fractions"})
    >>> get("Fraction") is Fraction
    True
    >>> get("Faction")
    Traceback (most recent call last):
    ...
    AttributeError: module 'fedtern.core.lazy' has no attribute 'Faction'
    """

    def get_attribute(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get_attribute


__all__ = ["import_on_first_use"]
