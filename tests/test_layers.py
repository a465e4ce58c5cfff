"""Arrows point one way: what may import what, read off the source."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import fedtern

ROOT = Path(fedtern.__file__).parent

# Lowest first. A module may import from lower layers and from its own.
CORE = (
    ("errors",),
    ("layout",),
    ("kernels",),
    ("updates", "wire"),
    ("sums", "envelope", "snapshot"),
    ("compressors", "codecs"),
    ("memory", "aggregate", "arrays"),
    ("methods",),
    ("analytic", "protocol"),
)
ABOVE = (
    ("extras", "files", "names", "numbers"),
    ("store", "data"),
    ("environment",),
    ("training",),
    ("engines",),
    ("experiments", "inspection", "report"),
    ("reproduce", "advice"),
    ("",),
    ("flower", "mqtt"),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, layer in enumerate(CORE + ABOVE) for name in layer}
LAST_OF_THE_CORE = len(CORE) - 1
TORCH_FREE = {"data", "environment", "store", "inspection", "report", "advice"}
TORCH = (
    "torch",
    "fedtern.training",
    "fedtern.transports.local.federation",
    "fedtern.transports.local.simulation",
)
NO_IO = {"os", "pathlib", "io", "time", "datetime", "logging", "random", "socket", "tempfile"}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield "" if parts == ("__init__",) else parts[0], path


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def test_every_module_has_a_layer():
    assert {name for name, _ in modules()} <= set(RANK)


def test_imports_point_downwards():
    for name, path in modules():
        for target in imports(path):
            package, _, rest = target.partition(".")
            if package == "fedtern":
                lower = rest.partition(".")[0]
                assert RANK[lower] <= RANK[name], f"{path} imports {target}"


def test_the_core_needs_numpy_and_numba_only_and_does_no_io():
    for name, path in modules():
        if RANK[name] > LAST_OF_THE_CORE:
            continue  # and what it may import is ranked lower still
        for target in imports(path):
            package = target.partition(".")[0]
            assert package in {"fedtern", "numpy", "numba", "llvmlite"} | set(
                sys.stdlib_module_names
            )
            assert package not in NO_IO, f"{path} imports {target}"
            assert "open(" not in path.read_text().replace(".open(", "").replace("def open(", "")


def test_torch_is_imported_where_models_are_trained_and_nowhere_else():
    for name, path in modules():
        if name in TORCH_FREE:
            assert not any(target.startswith("torch") for target in imports(path)), path


def test_flower_is_imported_by_the_package_that_is_for_it_and_nowhere_else():
    for name, path in modules():
        if name != "flower":
            assert not any(target.partition(".")[0] == "flwr" for target in imports(path)), path


def test_flower_apps_do_not_need_torch():
    for name, path in modules():
        if name == "flower" and not path.name.startswith("engine"):
            assert not any(target.startswith(TORCH) for target in imports(path)), path


def test_mqtt_is_imported_by_the_package_that_is_for_it_and_nowhere_else():
    for name, path in modules():
        if name != "mqtt":
            mqtt = {target.partition(".")[0] for target in imports(path)} & {"aiomqtt", "paho"}
            assert not mqtt, path


def test_both_sides_of_the_conversation_over_mqtt_know_neither_a_network_nor_a_clock():
    pure = ("coordinator", "member", "topics", "plan", "limits", "presence")
    for name in pure:
        found = {target.partition(".")[0] for target in imports(ROOT / "mqtt" / f"{name}.py")}
        assert not found & ({"asyncio", "aiomqtt"} | NO_IO - {"logging"}), name


def test_modules_can_be_read_in_one_sitting():
    for _, path in modules():
        assert len(path.read_text().splitlines()) <= 250, f"{path}: is a noun missing in it?"
