"""Import rules: which package may import which, and who may use torch, Flower, MQTT or I/O."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"

# Each package may import the packages listed here and everything below them.
# docs/architecture.md explains the packages and draws the imports that exist.
ARROWS = {
    "core": (),
    "privacy": ("core",),
    "store": ("core",),
    "data": ("store",),
    "federation": ("data", "privacy"),
    "training": ("federation",),  # what a trainer gets and returns is the same on all transports
    "runs": ("data", "privacy"),
    "transports": ("training", "runs"),
    "tuning": ("transports",),
    "report": ("runs",),
    "advice": ("report",),
    "cli": ("advice", "tuning"),
    "fedtern_paper": ("cli",),
}

# Inside core, lowest first. A module may import lower layers and its own layer.
CORE_LAYERS = (
    ("errors", "extras", "lazy", "names", "numbers"),
    ("dtypes",),
    ("layout",),
    ("kernels", "version"),
    ("updates", "wire"),
    ("carried", "template"),
    ("envelope", "snapshot"),
    ("compressors", "codecs"),
    ("feedback", "arrays"),
    ("methods",),
    ("analytic", "protocol"),
    ("inspection",),
)
CORE_RANK = {name: rank for rank, layer in enumerate(CORE_LAYERS) for name in layer}

NO_IO = {"os", "pathlib", "io", "time", "datetime", "logging", "random", "socket", "tempfile"}

# Modules that decide what both sides do, without a network or a clock of their own.
PURE = (
    "federation/client_session",
    "federation/interfaces",
    "federation/presence",
    "federation/round_controller",
    "federation/round_policy",
    "federation/secure_participant",
    "federation/secure_rounds",
    "transports/mqtt/client",
    "transports/mqtt/limits",
    "transports/mqtt/messages",
    "transports/mqtt/reassembly",
    "transports/mqtt/server",
    "transports/mqtt/topics",
)

# Leading underscores that are documented, public API: named tuples and os._exit.
PUBLIC_UNDERSCORES = {"_asdict", "_exit", "_fields", "_make", "_replace"}
# Attributes of Flower's grid and of aiomqtt's client for which neither library has a public name.
FOREIGN_PRIVATES = {"_addr", "_cert", "_insecure", "_on_connect", "_on_publish", "_sock"}


def modules(folder: str = "") -> Iterator[Path]:
    return iter(sorted((SRC / folder).rglob("*.py")))


def place(path: Path) -> str:
    """Path of a module below src/fedtern or src, for rules and messages."""
    path = path.relative_to(SRC)
    return (path.relative_to("fedtern") if path.parts[0] == "fedtern" else path).as_posix()


def package(path: Path) -> str:
    return place(path).partition("/")[0]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(path)}: relative import"
            assert node.module is not None
            yield node.module


def libraries(path: Path) -> set[str]:
    return {target.partition(".")[0] for target in imports(path)}


def package_of_import(target: str) -> str | None:
    """The package that an import names, or None if it names none of ours or the facade."""
    first, _, rest = target.partition(".")
    if first == "fedtern_paper":
        return first
    return rest.partition(".")[0] or None if first == "fedtern" else None


def reachable(name: str) -> set[str]:
    return {name}.union(*(reachable(lower) for lower in ARROWS[name]))


def test_every_package_has_a_place_in_the_layers():
    packages = {package(path) for path in modules()} - {"__init__.py", "__main__.py"}
    assert packages == set(ARROWS)


def test_packages_import_only_packages_below_them():
    wrong = [
        f"{place(path)} imports {target}"
        for path in modules()
        if package(path) in ARROWS  # not the facade, which re-exports, nor __main__
        for target in imports(path)
        if package_of_import(target) not in {None, *reachable(package(path))}
    ]
    assert wrong == []


def test_only_transports_the_command_line_and_the_paper_import_the_facade():
    for path in modules():
        if package(path) not in {"transports", "cli", "fedtern_paper"}:
            assert "fedtern" not in imports(path), f"{place(path)} imports the facade"


def test_transports_share_the_local_engine_and_do_not_import_each_other():
    allowed = {"local": {"local"}, "mqtt": {"mqtt", "local"}, "flower": {"flower", "local"}}
    for name, transports in allowed.items():
        for path in modules(f"fedtern/transports/{name}"):
            prefix = "fedtern.transports."
            found = {t.removeprefix(prefix) for t in imports(path) if t.startswith(prefix)}
            assert {each.partition(".")[0] for each in found} <= transports, place(path)


def test_core_modules_import_only_lower_layers_of_the_core():
    root = SRC / "fedtern" / "core"
    for path in modules("fedtern/core"):
        name = path.relative_to(root).with_suffix("").parts[0]
        if name == "__init__":
            continue
        for target in imports(path):
            if target.startswith("fedtern."):
                lower = target.split(".")[2]
                assert CORE_RANK[lower] <= CORE_RANK[name], f"{place(path)} imports {target}"


def test_the_core_needs_only_numpy():
    allowed = {"fedtern", "numpy"} | set(sys.stdlib_module_names)
    for path in modules("fedtern/core"):
        assert libraries(path) <= allowed, place(path)


def test_the_core_does_no_io():
    for path in modules("fedtern/core"):
        # One environment variable chooses the kernels.
        allowed = {"os"} if path.name == "backend.py" else set()
        assert not (libraries(path) & NO_IO) - allowed, place(path)
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not calls & {"open", "print", "input"}, place(path)


def test_decisions_about_rounds_know_neither_network_nor_clock():
    for name in PURE:
        found = libraries(SRC / "fedtern" / f"{name}.py")
        assert not found & ({"asyncio", "aiomqtt", "flwr"} | NO_IO - {"logging"}), name


def test_torch_is_imported_only_where_models_are_trained():
    trains = ("training/", "transports/local/", "transports/flower/engine")
    # The command line and the paper's grid set the number of torch's threads.
    starts_training = ("cli/", "fedtern_paper/")
    for path in modules():
        if "torch" in libraries(path):
            assert place(path).startswith(trains + starts_training), place(path)


def test_compressed_flower_apps_need_no_torch():
    needs_torch = ("torch", "fedtern.training", "fedtern.transports.local")
    for path in modules("fedtern/transports/flower"):
        if not path.name.startswith("engine"):
            found = [target for target in imports(path) if target.startswith(needs_torch)]
            assert not found, f"{place(path)} imports {found}"


def test_flower_is_imported_only_by_its_transport():
    for path in modules():
        if "flwr" in libraries(path):
            assert place(path).startswith("transports/flower/"), place(path)


def test_mqtt_libraries_are_imported_only_by_their_transport():
    for path in modules():
        if libraries(path) & {"aiomqtt", "paho"}:
            assert place(path).startswith("transports/mqtt/"), place(path)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def names_taken(node: ast.AST) -> list[str]:
    """Names that one node takes from another object or module."""
    match node:
        case ast.Attribute(attr=name) if not is_own(node):
            return [name]
        case ast.Import(names=aliases):
            return [part for alias in aliases for part in alias.name.split(".")]
        case ast.ImportFrom(module=str(module), names=aliases):
            return [*module.split("."), *(alias.name for alias in aliases)]
        case ast.Call(
            func=ast.Name(id="getattr" | "setattr" | "hasattr"),
            args=[_, ast.Constant(value=str(name)), *_],
        ):
            return [name]
        case _:
            return []


def private_names_taken(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        for name in filter(is_private, names_taken(node)):
            yield getattr(node, "lineno", 0), name


def names_defined(tree: ast.AST) -> Iterator[str]:
    """Functions, classes and variables of a module, and attributes of its classes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) if is_own(node):
                yield name


def test_private_names_are_used_only_in_the_module_that_defines_them():
    found = []
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        allowed = {*names_defined(tree), *PUBLIC_UNDERSCORES, *FOREIGN_PRIVATES}
        found += [
            f"{place(path)}:{line}: {name}"
            for line, name in private_names_taken(tree)
            if name not in allowed
        ]
    assert found == []


def test_a_foreign_private_name_is_reported_however_it_is_written():
    source = "\n".join(
        [
            "from other import _helper",
            "from package._module import helper",
            "import package._module",
            "value = other._state",
            "value = getattr(other, '_state')",
            "self._mine = value",
        ]
    )
    assert [line for line, _ in private_names_taken(ast.parse(source))] == [1, 2, 3, 4, 5]
