"""The compiled kernels under the address and undefined-behaviour sanitizers of gcc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FLAGS = "-std=c99 -O1 -g -Wall -Wextra -Werror -ffp-contract=off -fPIC -shared"
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all"

# Loads the instrumented module in place of the installed one, before anything imports it.
PLUGIN = """
import importlib.util
import sys

NAME = "fedtern.core.kernels.compiled"
spec = importlib.util.spec_from_file_location(NAME, {path!r})
module = importlib.util.module_from_spec(spec)
sys.modules[NAME] = module
spec.loader.exec_module(module)
"""


@pytest.mark.slow
def test_kernels_stay_within_their_arrays(tmp_path):
    compiler = shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs gcc on Linux")
    library = tmp_path / "compiled.so"
    include = sysconfig.get_paths()["include"]
    sources = [ROOT / "native" / name for name in ("kernels.c", "adaptive.c", "python_module.c")]
    command = [compiler, *FLAGS.split(), *SANITIZERS.split(), f"-I{include}", *map(str, sources)]
    subprocess.run([*command, "-o", str(library), "-lm"], check=True)
    (tmp_path / "instrumented.py").write_text(PLUGIN.format(path=str(library)))
    find = [compiler, "-print-file-name=libasan.so"]
    runtime = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    environment = {
        **os.environ,
        "FEDTERN_KERNELS": "native",
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself does not free everything
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    core = ROOT / "tests" / "core"
    protocol = core / "protocol"
    tests = [
        core / "kernels",
        core / "codecs",
        protocol / "test_catch_up.py",
        protocol / "test_protocol.py",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "instrumented"]
    command += ["-m", "not slow", *map(str, tests)]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
