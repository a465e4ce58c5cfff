"""The reproduction of the paper uses only the public API of fedtern."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch")

import fedtern_paper

ROOT = Path(fedtern_paper.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))


def names_taken(source: str) -> Iterator[tuple[str, str | None]]:
    """Return each module of fedtern that is imported, with each name that is taken from it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        yield from (each for each in found if each[0].partition(".")[0] == "fedtern")


def private_imports(source: str) -> list[str]:
    """Return the imports of names that are not in the ``__all__`` of their module.

    A module without ``__all__`` has no public names, and ``import fedtern.x`` makes all names of a
    module available, public or not.
    """
    return [
        f"from {module} import {name}" if name else f"import {module}"
        for module, name in names_taken(source)
        if name not in getattr(import_module(module), "__all__", ())
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_public_names_of_fedtern(path):
    assert private_imports(path.read_text()) == []


def test_imports_of_private_names_are_found():
    source = "\n".join(
        [
            "from fedtern import Environment, require",
            "from fedtern.runs import Experiment, experiment",
            "from fedtern.core.layout import Layout",
            "import fedtern.runs",
            "def late():",
            "    from fedtern.report.formatting import method_label",
        ]
    )
    assert private_imports(source) == [
        "from fedtern import require",
        "from fedtern.runs import experiment",
        "from fedtern.core.layout import Layout",
        "import fedtern.runs",
        "from fedtern.report.formatting import method_label",
    ]


def test_every_public_name_of_fedtern_exists():
    modules = {module for path in SOURCES for module, _ in names_taken(path.read_text())}
    assert modules
    for name in modules:
        module = import_module(name)
        assert [public for public in module.__all__ if not hasattr(module, public)] == []
