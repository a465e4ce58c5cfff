from __future__ import annotations

import ctypes

import pytest
from device_library import load_library


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> ctypes.CDLL:
    """The C client, compiled for this machine."""
    return load_library(tmp_path_factory.mktemp("device"))
