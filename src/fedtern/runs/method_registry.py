"""The methods that an experiment can name: those of the core, and secure aggregation."""

from __future__ import annotations

from typing import Any

from fedtern.core.methods import METHODS, Recipe
from fedtern.privacy.secure import secure_topk


def known_methods() -> dict[str, Recipe[Any]]:
    """Return all methods of experiments by name.

    >>> "stc" in known_methods(), "secure_topk" in known_methods()
    (True, True)
    """
    # At each call, because methods can be registered later.
    return {**METHODS, secure_topk.name: secure_topk}
