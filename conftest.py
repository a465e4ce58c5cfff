"""Settings for every test, those in docstrings and in pages included."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from unittest.mock import patch

import pytest

# Modules that pytest cannot import without an optional dependency.
collect_ignore = [] if find_spec("flwr") else ["src/fedtern/transports/flower"]

# They have the same module name, and no doctests: pytest could not collect two of them.
collect_ignore_glob = ["*conftest.py"]

_REGISTRIES = (
    ("fedtern.core.methods", "METHODS"),
    ("fedtern.data.hyperparameters", "TASK_DEFAULTS"),
    ("fedtern.training.tasks", "TASKS"),
)


@pytest.fixture(autouse=True)
def _same_global_state() -> Iterator[None]:
    """Start each test with one torch thread, and undo what it registers.

    With more threads, the last bits of torch's sums differ, and small models train slower.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    with ExitStack() as stack:
        for module, name in _REGISTRIES:
            if module in sys.modules:
                stack.enter_context(patch.dict(f"{module}.{name}"))
        yield
