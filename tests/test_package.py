from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fedtern

PROBE = """
import sys, time
start = time.process_time()  # other processes may slow this one down
import fedtern
seconds = time.process_time() - start
names = ("torch", "flwr", "typer", "rich", "aiomqtt", "plotly", "numba", "llvmlite", "jinja2")
print(seconds, [name for name in names if name in sys.modules])
"""


def test_importing_is_quick_and_needs_no_optional_dependency():
    runs = [
        subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
        for _ in range(4)
    ]
    results = [run.stdout.split(maxsplit=1) for run in runs]
    assert {foreign.strip() for _, foreign in results} == {"[]"}
    # The fastest of several: a process that shares its core takes longer.
    assert min(float(seconds) for seconds, _ in results) <= 0.5


def test_everything_exported_exists_and_everything_public_is_exported():
    assert sorted(fedtern.__all__, key=str) == sorted(set(fedtern.__all__), key=str)
    public = {
        name
        for name, value in vars(fedtern).items()
        if not name.startswith("_")
        and not hasattr(value, "__path__")
        and getattr(value, "__name__", "") not in sys.modules
    }
    assert public | {"simulate"} == set(fedtern.__all__) | {"TYPE_CHECKING", "require"}


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
    sentence = "fedtern.simulate needs torch, which is not installed: pip install 'fedtern[torch]'"
    assert run.stdout.splitlines()[-1] == sentence


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert version("fedtern") == fedtern.__version__
    assert (Path(fedtern.__file__).parent / "py.typed").exists()
