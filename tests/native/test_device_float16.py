"""The C client with a residual of two bytes per parameter."""

from __future__ import annotations

import numpy as np
import pytest
from device_library import Device, compile_c, load_library

from fedtern import Layout, Server, sgd, stc

OPTION = "-DFT_DEVICE_FLOAT16_RESIDUAL=1"
SIZE = 4000
LAYOUT = Layout.flat(SIZE)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return load_library(tmp_path_factory.mktemp("float16"), OPTION)


def rounded(residual) -> bytes:
    """Bytes of a residual as binary16, without infinities."""
    return np.clip(residual, -65504, 65504).astype(np.float16).tobytes()


def residual_of(client) -> np.ndarray:
    arrays = client.snapshot().arrays
    return arrays.get("feedback.residual", np.zeros(SIZE, np.float32))


def awkward_delta(rng) -> np.ndarray:
    """Values of all magnitudes, with ties between two binary16 numbers and below the least one."""
    delta = rng.standard_normal(SIZE) * 10.0 ** rng.integers(-9, 6, SIZE)
    ties = rng.integers(0, 0x7BFF, SIZE // 4).astype(np.uint16).view(np.float16).astype(float)
    delta[: SIZE // 4] = ties * (1 + 2.0**-11)
    delta[SIZE // 4 : SIZE // 2] = rng.integers(-4000, 4000, SIZE // 4) * 2.0**-25
    return delta.astype(np.float32)


@pytest.mark.parametrize(
    "method", [stc(p_up=0.01, p_down=0.05), stc(p_up=1.0, p_down=1.0), sgd()], ids=str
)
def test_uploads_are_those_of_a_python_client_with_the_rounded_residual(library, method):
    rng = np.random.default_rng(3)
    start = rng.standard_normal(SIZE).astype(np.float32)
    server = Server(start, method, LAYOUT)
    device = Device(library, 7, method, LAYOUT, start, residual=np.float16)
    for t in range(12):
        python = device.twin()
        delta = awkward_delta(rng)
        data = device.send_delta(delta)
        assert data == python.send_delta(delta).data
        assert device.residual.tobytes() == rounded(residual_of(python))
        python = device.twin()
        if t % 3 != 2:  # else the upload is lost, and its update returns to the residual
            server.receive(7, data, 1)
        broadcast = server.finish_round().data
        device.receive(broadcast)
        python.receive(broadcast)
        assert device.residual.tobytes() == rounded(residual_of(python))
        assert device.weights.tobytes() == server.weights.tobytes()


def test_residual_never_becomes_infinite(library):
    device = Device(
        library, 7, stc(p_up=1 / SIZE), LAYOUT, np.zeros(SIZE, np.float32), residual=np.float16
    )
    delta = np.linspace(-1e9, 1e9, SIZE, dtype=np.float32)
    device.send_delta(delta)
    assert np.isfinite(device.residual).all()
    assert np.abs(device.residual).max() == 65504


@pytest.mark.parametrize("without", ["STC", "SIGNSGD", "DENSE"])
def test_option_compiles_without_warnings_if_a_method_is_left_out(tmp_path, without):
    options = (OPTION, f"-DFT_DEVICE_WITH_{without}=0")
    compile_c(tmp_path / "device.o", "device.c", flags=("-c", *options))
