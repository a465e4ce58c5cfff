"""Tasks of other packages and of your own files, found by the command line.

A package names its tasks in the group ``fedtern.tasks`` of its entry points. A module or a file is
named by ``--import``, or by the environment variable ``FEDTERN_TASKS``, which the processes of an
engine inherit. Both may call ``register_task``, or simply have tasks as attributes.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtern.training.tasks import Task

GROUP = "fedtern.tasks"
VARIABLE = "FEDTERN_TASKS"

Register = Callable[["Task"], object]


def import_module_or_file(name: str) -> ModuleType:
    """Import a module on the path, or a Python file.

    Raises:
        ValueError: there is no such module or file, or importing it fails.

    """
    path = Path(name)
    try:
        if path.suffix == ".py":
            return _import_file(path.resolve())
        # As `python -m` does: modules in the working directory can be imported.
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name.partition(".")[0]:
            raise ValueError(
                f"Cannot import {name!r}: there is no such module on the path or in {os.getcwd()};"
                " for a file, add .py"
            ) from None
        raise ValueError(f"Cannot import {name!r}: {error}") from error
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"Cannot import {name!r}: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"Cannot import {path}: there is no such file")
    found = sys.modules.get(path.stem)
    if found is not None and getattr(found, "__file__", None) == str(path):
        return found
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None  # the suffix is that of Python files
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # so that objects of the module can be pickled
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def add_imports(names: Iterable[str]) -> None:
    """Add modules and files to the environment variable, for this process and its children."""
    known = _imports()
    for name in names:
        given = str(Path(name).resolve()) if name.endswith(".py") else name
        if given not in known:
            known.append(given)
    if known:
        os.environ[VARIABLE] = os.pathsep.join(known)


def _imports() -> list[str]:
    return [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]


def load_plugins(register: Register, is_task: Callable[[object], bool]) -> None:
    """Register the tasks of all entry points, and of the modules in the environment variable.

    Args:
        register: registers a task, unless it is registered already.
        is_task: whether an object is a task.

    Raises:
        ValueError: a module cannot be imported.

    """
    for entry in entry_points(group=GROUP):
        try:
            found = entry.load()
        except Exception as error:
            raise ValueError(
                f"Cannot import task {entry.name!r} from {entry.value!r}: {error}; repair or"
                " uninstall that package"
            ) from error
        _register_all(found, register, is_task)
    for name in _imports():
        _register_all(import_module_or_file(name), register, is_task)


def _register_all(found: Any, register: Register, is_task: Callable[[object], bool]) -> None:
    candidates = [found]
    if isinstance(found, ModuleType):
        candidates = list(vars(found).values())
    elif isinstance(found, list | tuple):
        candidates = list(found)
    for candidate in candidates:
        if is_task(candidate):
            register(candidate)
