"""Import optional dependencies, with an error that says how to install them."""

from __future__ import annotations

import importlib
from types import ModuleType

from fedtern.core.errors import MissingExtraError


def require(module: str, extra: str, user: str) -> ModuleType:
    """Import a module of an optional dependency.

    Args:
        module: the module.
        extra: the extra of fedtern that installs it.
        user: what needs the module, for the error message.

    Raises:
        MissingExtraError: the module is not installed.

    >>> require("surely_absent", "torch", "this example")
    Traceback (most recent call last):
    ...
    fedtern.core.errors.MissingExtraError: this example needs surely_absent, which is not installed:
    pip install 'fedtern[torch]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A package that is installed but broken needs another remedy.
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtraError(
            f"{user} needs {package}, which is not installed: pip install 'fedtern[{extra}]'"
        ) from None


__all__ = ["require"]
