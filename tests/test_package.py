from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedtern
from fedtern.core.extras import install_command

# Dependencies that take long to import, and those that are optional.
FOREIGN = (
    "aiomqtt", "asyncio", "filelock", "flwr", "jinja2", "llvmlite", "matplotlib", "numba", "numpy",
    "pandas", "paho", "plotly", "pooch", "prometheus_client", "rich", "scipy", "sklearn", "tarfile",
    "torch", "typer",
)  # fmt: skip
FIRST_MESSAGE = """
import numpy as np
from fedtern import Client, Layout, Server, stc
layout, start = Layout.flat(1000), np.zeros(1000, np.float32)
client = Client(0, stc(), layout, start)
Server(start, stc(), layout).receive(0, client.send(np.ones(1000, np.float32)).data, 1)
"""
COMPRESS = "import fedtern, numpy\nfedtern.decompress(fedtern.compress(numpy.ones(1000, 'f4')))"
COMMAND = "import sys; sys.argv[1:] = {!r}\nfrom fedtern.__main__ import main\nmain()"


def imported_by(code: str) -> set[str]:
    """Return which of the foreign modules, and of our packages, a program imports."""
    report = "import atexit, sys; atexit.register(lambda: print(*sys.modules))\n"
    command = [sys.executable, "-c", report + code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = run.stdout.splitlines()[-1].split()
    ours = {name.split(".")[1] for name in modules if name.startswith("fedtern.")}
    return {name for name in FOREIGN if name in modules} | {f"fedtern.{name}" for name in ours}


@pytest.mark.parametrize(
    ("code", "imported"),
    [
        ("import fedtern", {"fedtern.core"}),
        (COMPRESS, {"fedtern.core", "numpy"}),
        (FIRST_MESSAGE, {"fedtern.core", "numpy"}),
    ],
    ids=["import", "compress", "first message"],
)
def test_library_imports_only_what_it_uses(code, imported):
    assert imported_by(code) == imported


def test_printing_the_version_needs_no_command_line():
    assert imported_by(COMMAND.format(["--version"])) == {
        "fedtern.__main__", "fedtern.core", "numpy",
    }  # fmt: skip


def test_printing_the_help_imports_neither_torch_nor_numpy():
    pytest.importorskip("typer")
    imported = imported_by(COMMAND.format(["--help"]))
    # Some versions of typer import asyncio.
    assert imported - {"asyncio"} == {"fedtern.__main__", "fedtern.cli", "fedtern.core", "typer"}


@pytest.mark.parametrize(
    "command", ["run", "compare", "tasks", "methods", "split", "serve", "demo"]
)
def test_printing_the_help_of_a_command_does_not_import_torch(command):
    pytest.importorskip("torch")
    assert "torch" not in imported_by(COMMAND.format([command, "--help"]))


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_command_answers_within_half_a_second(option):
    pytest.importorskip("typer")
    probe = "import atexit, sys, time; atexit.register(lambda: print(time.process_time()))\n"
    command = [sys.executable, "-c", probe + COMMAND.format([option])]
    runs = [subprocess.run(command, capture_output=True, check=True) for _ in range(4)]
    assert min(float(run.stdout.split()[-1]) for run in runs) <= 0.5


def test_importing_is_quick():
    probe = (
        "import time; start = time.process_time()\nimport fedtern\n"
        "print(time.process_time() - start)"
    )
    command = [sys.executable, "-c", probe]
    runs = [subprocess.run(command, capture_output=True, check=True) for _ in range(4)]
    # The fastest of several: a process that shares its core takes longer.
    assert min(float(run.stdout) for run in runs) <= 0.15


def test_everything_exported_exists_and_everything_public_is_exported():
    assert sorted(fedtern.__all__, key=str) == sorted(set(fedtern.__all__), key=str)
    values = {name: getattr(fedtern, name) for name in fedtern.__all__}
    assert set(values) <= set(dir(fedtern))
    public = {
        name
        for name, value in (vars(fedtern) | values).items()
        if not name.startswith("_")
        and not hasattr(value, "__path__")
        and getattr(value, "__name__", "") not in sys.modules
    }
    helpers = {"TYPE_CHECKING", "import_on_first_use", "require"}
    assert public == set(fedtern.__all__) | helpers


def imports_for_type_checkers(source: str) -> dict[str, str]:
    """Return the module of each name that is imported below ``if TYPE_CHECKING``."""
    guarded = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    return {
        alias.name: node.module
        for guard in guarded
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


NEED_TORCH = ("fedtern.training", "fedtern.transports.local", "fedtern.tuning")


@pytest.mark.parametrize("package", ["fedtern", "fedtern.cli"])
def test_type_checkers_see_the_names_that_are_imported_on_first_use(package):
    if package == "fedtern.cli":
        pytest.importorskip("typer")
    module = importlib.import_module(package)
    modules = imports_for_type_checkers(Path(module.__file__).read_text())
    eager = {"fedtern": {"MissingExtraError"}, "fedtern.cli": {"app"}}[package]
    assert modules.keys() | eager == set(module.__all__)
    for name, origin in modules.items():
        needs_torch = origin.startswith(NEED_TORCH)
        if not needs_torch or importlib.util.find_spec("torch"):
            assert getattr(module, name) is getattr(importlib.import_module(origin), name)


def requirements(extra: str | None) -> set[str]:
    """Return the packages that ``pip install fedtern[extra]`` asks for, by pyproject.toml."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    found: set[str] = set()
    for name, extras in (re.match(r"([\w-]+)(?:\[([\w,]+)\])?", text).groups() for text in wanted):
        inner = extras.split(",") if extras and name == "fedtern" else []
        found |= set().union(*map(requirements, inner)) if inner else {name}
    return found


def test_core_and_mqtt_client_install_neither_torch_nor_numba():
    assert requirements(None) == {"numpy", "filelock"}
    assert requirements("mqtt") == {"aiomqtt", "prometheus-client", "typer", "rich"}
    assert "torch" in requirements("paper")  # by way of another extra


def test_simulations_need_no_import_from_another_module():
    pytest.importorskip("torch")
    from fedtern.training import Metric
    from fedtern.transports.local import Callback, EarlyStopping

    assert (fedtern.Metric, fedtern.Callback) == (Metric, Callback)
    assert fedtern.EarlyStopping is EarlyStopping


def test_unknown_attributes_are_reported():
    with pytest.raises(AttributeError, match="module 'fedtern' has no attribute 'compres'"):
        _ = fedtern.compres


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from fedtern import *
import fedtern
help(fedtern)
try:
    fedtern.simulate("mlp-digits")
except fedtern.MissingExtraError as error:
    print(error)
"""


def test_without_torch_everything_can_be_imported_and_training_says_what_it_needs():
    command = [sys.executable, "-c", WITHOUT_TORCH]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    sentence = f"fedtern.simulate needs torch, which is not installed: {install_command('torch')}"
    assert run.stdout.splitlines()[-1] == sentence


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert version("fedtern") == fedtern.__version__
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["version"] == fedtern.__version__
    assert f"\nversion: {fedtern.__version__}\n" in (root / "CITATION.cff").read_text()
    assert (Path(fedtern.__file__).parent / "py.typed").exists()


INSTALLED = "fedtern-9.dist-info"


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({}, "pip install '.[mqtt]' in a clone of fedtern"),
        ({"fedtern.egg-info/PKG-INFO": "Name: fedtern"}, "pip install '.[mqtt]' in a clone"),
        ({f"{INSTALLED}/INSTALLER": "pip"}, "pip install 'fedtern[mqtt]'"),
        (
            {
                "fedtern.egg-info/PKG-INFO": "Name: fedtern",
                f"{INSTALLED}/INSTALLER": "pip",
                f"{INSTALLED}/direct_url.json": '{"url": "file:///a.whl", "archive_info": {}}',
            },
            "pip install 'fedtern[mqtt] @ file:///a.whl'",
        ),
    ],
    ids=["not installed", "checkout", "index", "file"],
)
def test_hints_name_the_package_only_if_it_came_from_an_index(
    files, command, tmp_path, monkeypatch
):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if INSTALLED in name:
            (path.parent / "METADATA").write_text("Name: fedtern\nVersion: 9\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert install_command("mqtt").startswith(command)
