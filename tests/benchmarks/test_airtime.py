"""``benchmarks/airtime.py``: formulas, and the tables on the page about devices."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def airtime(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import airtime

    yield airtime
    del sys.modules["airtime"]


@pytest.mark.parametrize(
    ("spreading_factor", "nbytes", "milliseconds"),
    [
        (9, 13, 164.864),  # both by other calculators of AN1200.13
        (12, 64, 2793.472),
    ],
)
def test_time_on_air_is_that_of_the_designers_guide(
    airtime, spreading_factor, nbytes, milliseconds
):
    link = airtime.LoRaWan(spreading_factor, payload=51)
    assert 1000 * link.time_on_air(nbytes) == pytest.approx(milliseconds)


def test_a_full_frame_is_one_fragment_and_one_byte_more_makes_two(airtime):
    link = airtime.LoRaWan(10, payload=51)
    one, two = link.up(49), link.up(50)
    assert (one.frames, two.frames) == (1, 2)
    assert one.airtime == link.time_on_air(49 + 2 + 13)
    assert one.seconds == pytest.approx(100 * one.airtime)  # duty cycle 1 %


def test_a_bluetooth_packet_of_251_bytes_takes_2088_microseconds_without_encryption(airtime):
    transfer = airtime.Bluetooth().up(244)
    assert transfer.frames == 1
    assert transfer.seconds == pytest.approx(2088e-6 + 150e-6 + 80e-6 + 150e-6)


def test_the_page_has_the_tables_that_the_script_prints(airtime):
    page = (ROOT / "docs" / "how-to" / "devices.md").read_text()
    _, _, rest = page.partition(airtime.BEGIN)
    tables, marker, _ = rest.partition(airtime.END)
    assert marker
    assert tables.strip() == airtime.tables().strip()
