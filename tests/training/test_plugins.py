"""Tasks of one's own modules and of installed packages."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from fedtern.training import plugins
from fedtern.training.tasks import TASKS, get_task, load_tasks

MODULE = """
from torch import nn
from fedtern.data import Dataset
from fedtern.training import Task, register_task
data = Dataset("two", [[0.0], [1.0]] * 20, [0, 1] * 20, [[0.0]], [0], num_classes=2)
attribute = Task("plug-attribute", data, lambda: nn.Linear(1, 2), 0.1, 5)
register_task(Task("plug-registered", data, lambda: nn.Linear(1, 2), 0.1, 5))
"""


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    """Work in an empty directory, and forget imported modules afterwards."""
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("my_plug", "broken_plug"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["my_plug", "my_plug.py", "./my_plug.py"])
def test_tasks_of_a_module_or_file_are_registered_once(tmp_path, name):
    (tmp_path / "my_plug.py").write_text(MODULE)
    for _ in range(2):
        load_tasks([name])
    assert get_task("plug-attribute").iterations == 5
    assert "plug-registered" in TASKS


def test_an_unknown_task_is_looked_for_in_the_environment_variable(tmp_path, monkeypatch):
    (tmp_path / "my_plug.py").write_text(MODULE)
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path / "my_plug.py"))
    assert get_task("plug-attribute").name == "plug-attribute"


def test_entry_points_are_modules_tasks_or_lists_of_tasks(tmp_path, monkeypatch):
    (tmp_path / "my_plug.py").write_text(MODULE + "several = [attribute]\n")
    monkeypatch.syspath_prepend(tmp_path)
    for value in ("my_plug", "my_plug:attribute", "my_plug:several"):
        entry = importlib.metadata.EntryPoint("plug", value, plugins.GROUP)
        monkeypatch.setattr(plugins, "entry_points", lambda group, e=entry: [e])
        TASKS.pop("plug-attribute", None)
        assert get_task("plug-attribute").iterations == 5


def test_a_broken_entry_point_is_named(monkeypatch):
    entry = importlib.metadata.EntryPoint("plug", "no_such_package", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    with pytest.raises(ValueError, match="Cannot import task 'plug' from 'no_such_package'"):
        load_tasks()


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (None, "broken_plug", "Cannot import 'broken_plug': there is no such module on the path"),
        (None, "broken_plug.py", "Cannot import .*broken_plug.py: there is no such file"),
        ("import no_such_package", "broken_plug", "No module named 'no_such_package'"),
        ("1 / 0", "broken_plug.py", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported_is_an_error_with_the_reason(
    tmp_path, text, name, message
):
    if text is not None:
        (tmp_path / "broken_plug.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_tasks([name])
