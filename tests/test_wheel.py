"""The built wheel, outside the checkout. ``scripts/check-package`` does more, with a network."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OLDEST_SETUPTOOLS = 77  # of the build, as in pyproject.toml


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("setuptools")
    if int(version("setuptools").partition(".")[0]) < OLDEST_SETUPTOOLS:
        pytest.skip(f"building without a network needs setuptools {OLDEST_SETUPTOOLS}")
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out)]
    subprocess.run([*pip, *options, str(ROOT)], check=True)
    (found,) = out.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_has_all_modules_and_data_files(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    assert {name.removeprefix("src/") for name in tracked} <= packed
    assert any(name.startswith("fedtern/core/kernels/compiled.") for name in packed)


@pytest.mark.slow
def test_tests_of_the_core_pass_with_the_wheel(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    imported = python("-c", "import fedtern; print(fedtern.__file__)").strip()
    assert Path(imported).is_relative_to(tmp_path / "installed")
    assert "kernels: native" in python("-m", "fedtern", "--version")
    python("-m", "fedtern", "--help")
    tests = [str(ROOT / "tests" / "core" / name) for name in ("codecs", "protocol")]
    options = ["-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    python("-m", "pytest", *options, *tests)
