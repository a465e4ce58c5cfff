"""The pages about MQTT agree with the code."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from fedtern.transports.mqtt import stats

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "how-to"


def test_the_federation_on_the_page_runs(mosquitto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (PAGES / "mqtt.md").read_text(), re.DOTALL)
    place = 'Broker("localhost")'
    assert place in block
    names: dict = {}
    exec(block.replace(place, f'Broker("127.0.0.1", {mosquitto.port})'), names)
    server, *clients = asyncio.run(asyncio.wait_for(names["run_federation"](), 60))
    assert server.any()
    assert all(client.tobytes() == server.tobytes() for client in clients)


def test_the_operations_page_lists_all_reasons_phases_and_metrics():
    page = (PAGES / "mqtt-operations.md").read_text()
    for name in (*stats.REASONS, *stats.PHASES):
        assert f"`{name}`" in page
    source = "".join(
        path.read_text() for path in (ROOT / "src/fedtern/transports/mqtt").glob("*.py")
    )
    for name in re.findall(
        r'"((?:rounds|uploads|catch|connections|clients|cohort|messages|phase)\w*)": \(', source
    ):
        assert f"fedtern_{name}" in page


def test_the_systemd_units_use_existing_options():
    from typer.testing import CliRunner

    from fedtern.cli import app

    for name in ("serve", "join"):
        unit = (ROOT / f"examples/mqtt/fedtern-{name}.service").read_text()
        shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).stdout
        for option in re.findall(r" (--[a-z-]+)", unit.partition("ExecStart")[2]):
            assert option in shown
