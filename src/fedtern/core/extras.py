"""Optional dependencies: used where they are installed, named where they are not."""

from __future__ import annotations

import importlib
from types import ModuleType

from fedtern.core.errors import MissingExtraError


def require(module: str, extra: str, user: str) -> ModuleType:
    """The module, or an error that says who needs it and which line installs it.

    >>> require("surely_absent", "torch", "this example")
    Traceback (most recent call last):
    ...
    fedtern.core.errors.MissingExtraError: this example needs surely_absent, which is not installed:
    pip install 'fedtern[torch]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A package that is there but broken is another problem, with another remedy.
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtraError(
            f"{user} needs {package}, which is not installed: pip install 'fedtern[{extra}]'"
        ) from None


__all__ = ["require"]
