"""The software and hardware that a run used, for ``config.json``.

Two machines give the same bytes only if these agree: libraries for linear algebra choose other
instructions, and so another order of additions, on another CPU.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from fedtern.core.version import __version__

_SECONDS = 5.0  # for git, which may wait for a slow disk


def describe_machine() -> dict[str, str]:
    """Return versions, CPU, BLAS and commit of this process by name.

    The versions of PyTorch and Flower are included if they were imported. The commit is that of the
    checkout which fedtern was imported from, followed by ``-dirty`` if files were changed.

    >>> sorted(describe_machine().keys() & {"python", "numpy", "cpu", "blas", "fedtern"})
    ['blas', 'cpu', 'fedtern', 'numpy', 'python']
    """
    found = {
        "fedtern": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": _imported_version("torch"),
        "flower": _imported_version("flwr"),
        "platform": platform.platform(terse=True),
        "cpu": _cpu(),
        "instructions": _instructions(),
        "blas": _blas(),
    }
    return {name: value for name, value in found.items() if value}


def _imported_version(name: str) -> str:
    if name not in sys.modules:
        return ""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@cache
def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _instructions() -> str:
    """Return the instruction set that PyTorch has chosen for this CPU."""
    torch = sys.modules.get("torch")
    return str(torch.backends.cpu.get_cpu_capability()) if torch is not None else ""


@cache
def _blas() -> str:
    """Return the libraries for linear algebra of NumPy and PyTorch."""
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    found = f"NumPy: {blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
    torch = sys.modules.get("torch")
    if torch is None:
        return found
    return f"{found}; PyTorch: {'MKL' if torch.backends.mkl.is_available() else 'other'}"


@cache
def _commit() -> str:
    """Return the commit of the checkout that contains this file; empty for an installed package."""
    here = Path(__file__).resolve()
    if not any((parent / ".git").exists() for parent in here.parents[2:4]):
        return ""
    command = ["git", "-C", str(here.parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.decode(errors="replace").strip()
