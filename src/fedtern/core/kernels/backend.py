"""Choose the implementation of the kernels.

The compiled kernels are used if they are installed, else the slower ones in NumPy, which give the
same results. The environment variable ``FEDTERN_KERNELS`` ("native" or "numpy") overrides this.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

from fedtern.core.errors import KernelsError

_VARIABLE = "FEDTERN_KERNELS"
_MODULES = {
    "native": "fedtern.core.kernels.native",
    "numpy": "fedtern.core.kernels.reference",
}


def _choose(wanted: str) -> ModuleType:
    if wanted not in ("", *_MODULES):
        raise KernelsError(f"{_VARIABLE} must be {' or '.join(_MODULES)}, got {wanted!r}")
    if wanted != "numpy":
        try:
            return importlib.import_module(_MODULES["native"])
        except ImportError as error:
            if wanted == "native":
                raise KernelsError(
                    f"{_VARIABLE} is native, but the compiled kernels are not installed ({error});"
                    " install fedtern on a machine with a C compiler, or unset the variable"
                ) from error
    return importlib.import_module(_MODULES["numpy"])


if TYPE_CHECKING:
    from fedtern.core.kernels import reference

    kernels = reference
else:
    kernels = _choose(os.environ.get(_VARIABLE, ""))


def describe_kernels() -> str:
    """Describe the kernels in use, for ``fedtern --version``.

    >>> describe_kernels().split()[0] in ("native", "numpy")
    True
    """
    if kernels.NAME == "numpy":
        return "numpy (slower; no compiled kernels)"
    from fedtern.core.kernels import compiled

    return f"native {compiled.version} ({compiled.instruction_set()})"


def is_fallback() -> bool:
    """Return whether the kernels in NumPy serve because the compiled ones are not installed."""
    return kernels.NAME == "numpy" and os.environ.get(_VARIABLE, "") != "numpy"
