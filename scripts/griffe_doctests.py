"""Extension of griffe: examples in docstrings are code, wherever they stand.

griffe recognises examples only below a heading ``Examples:``. Other lines with ``>>>`` would become
quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", flags=re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    """Puts examples into fenced code blocks."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(fence, obj.docstring.value)


def fence(match: re.Match[str]) -> str:
    """Return an example as a code block, without the directives of doctest."""
    code = re.sub(r" *# doctest: .*", "", match.group())
    return f"```pycon\n{code}\n```"
