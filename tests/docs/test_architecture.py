"""docs/architecture.md matches the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
MOST_CALLS = 15

# [`Class.method`](../src/module.py), [`function`](../src/module.py)
NAMED = re.compile(r"\[`([\w.]+)`\]\((\.\./src/[\w/]+\.py)\)")


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def definitions(path: Path) -> set[str]:
    """Functions, classes, methods and attributes that a module defines."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{member.name}"
                for member in node.body
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def test_the_import_graph_is_up_to_date():
    command = [sys.executable, str(ROOT / "scripts" / "import-graph"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_package_is_in_the_tree():
    folders = {path.parent.name for path in (ROOT / "src" / "fedtern").glob("*/__init__.py")}
    tree = text().partition("## Packages")[2].partition("```text")[2].partition("```")[0]
    assert folders <= set(re.findall(r"^ +(\w+)/", tree, flags=re.MULTILINE))


def test_every_named_function_is_defined_in_the_linked_file():
    named = NAMED.findall(text())
    assert len(named) > 20
    missing = [
        f"{name} in {link}"
        for name, link in named
        if name not in definitions((PAGE.parent / link).resolve())
    ]
    assert missing == []


@pytest.mark.parametrize("transport", ["Local", "MQTT", "Flower"])
def test_a_walk_through_has_few_calls_and_each_has_a_link(transport):
    section = text().partition(f"### {transport}\n")[2].partition("\n#")[0]
    steps = re.findall(r"^\d+\. (.*?)(?=^\d+\. |\Z)", section, flags=re.MULTILINE | re.DOTALL)
    assert 5 < len(steps) <= MOST_CALLS
    assert all(NAMED.search(step) for step in steps)
