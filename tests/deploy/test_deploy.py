"""The files under deploy agree with the commands and the metrics of the package."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from fedtern.transports.mqtt import Stats
from fedtern.transports.mqtt.metrics import serve_metrics
from transports.mqtt.brokers import Mosquitto, Processes, free_port, need_broker

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "fedtern.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
NAME = re.compile(r"\b(?:fedtern|process)_\w+")
LABELS_OF_PROMETHEUS = {"job", "instance"}


def scrape(port: int) -> dict[str, set[str]]:
    """Return the labels of each metric that a server has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        text = page.read().decode()
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? ", text, flags=re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    port = free_port()
    stats = Stats(scores={"loss": 0.5, "accuracy": 0.9}, evaluated_round=7)
    with serve_metrics(stats, "wards", port):
        return scrape(port)


def targets() -> list[tuple[str, str]]:
    """Return expression and legend of all queries of the dashboard."""
    return [(t["expr"], t["legendFormat"]) for p in DASHBOARD["panels"] for t in p["targets"]]


@pytest.mark.parametrize(("expression", "legend"), targets())
def test_a_query_of_the_dashboard_uses_metrics_and_labels_that_exist(exported, expression, legend):
    names = NAME.findall(expression)
    assert names
    assert set(names) <= exported.keys()
    labels = set.union(*(exported[name] for name in names)) | LABELS_OF_PROMETHEUS
    matched = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expression)
    assert {*matched, *re.findall(r"{{(\w+)}}", legend)} <= labels
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_shows_every_metric_of_a_federation(exported):
    shown = set(NAME.findall(json.dumps(DASHBOARD)))
    ours = {name for name in exported if name.startswith("fedtern_")}
    assert ours - shown == {"fedtern_evaluated_round"}


def test_panels_of_the_dashboard_do_not_overlap():
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_uses_metrics_that_exist_and_says_what_to_do(exported, rule):
    names = {*NAME.findall(rule["expr"])}
    assert names <= exported.keys()
    assert names or rule["expr"].startswith("up{")
    labels = set().union(*(exported[name] for name in names)) | LABELS_OF_PROMETHEUS
    used = re.findall(r"\$labels\.(\w+)", json.dumps(rule))
    assert set(used) <= labels
    assert {"summary", "action"} <= rule["annotations"].keys()
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_version_and_the_process_are_exported(exported):
    assert exported["fedtern_build_info"] == {"federation", "version", "kernels"}
    assert "python_info" in exported
    if sys.platform == "linux":
        assert {"process_resident_memory_bytes", "process_cpu_seconds_total"} <= exported.keys()


def test_scores_are_absent_before_the_first_evaluation():
    port = free_port()
    with serve_metrics(Stats(), "wards", port):
        assert not {"fedtern_score", "fedtern_evaluated_round"} & scrape(port).keys()


def commands() -> dict[str, list[str]]:
    """Return the arguments of the fedtern command of each service."""
    services = COMPOSE["services"].items()
    return {k: shlex.split(v["command"]) for k, v in services if v["image"] == "fedtern"}


def test_the_compose_file_mounts_files_that_exist_and_starts_all_clients():
    for service in COMPOSE["services"].values():
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            assert (DEPLOY / source).exists() or source in COMPOSE["volumes"], source
        for needed in service.get("depends_on", ()):
            assert needed in COMPOSE["services"]
    server = commands()["server"]
    count = int(server[server.index("--clients") + 1])
    joined = {c[c.index("--client") + 1] for k, c in commands().items() if k != "server"}
    assert joined == {str(i) for i in range(count)}


def test_prometheus_reads_the_port_that_the_server_opens():
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    port = commands()["server"][commands()["server"].index("--metrics-port") + 1]
    assert job["static_configs"][0]["targets"] == [f"server:{port}"]
    assert f"EXPOSE {port}" in (DEPLOY / "Dockerfile").read_text()
    assert all(f'job="{job["job_name"]}"' in e for e, _ in targets() if "process_" in e)


def test_the_dockerfile_copies_files_that_exist_and_that_are_not_ignored():
    text = (DEPLOY / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text().split()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, flags=re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored


def has_docker() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    return subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_the_image_builds():
    if not has_docker():
        pytest.skip("NO DOCKER DAEMON: the image is not built")
    command = ["docker", "build", "-f", str(DEPLOY / "Dockerfile"), "-t", "fedtern-test"]
    subprocess.run([*command, "--build-arg", "EXTRAS=mqtt", str(ROOT)], check=True)
    shown = subprocess.run(
        ["docker", "run", "--rm", "fedtern-test", "--version"], capture_output=True, check=True
    )
    assert shown.stdout.startswith(b"fedtern ")


@pytest.mark.slow
def test_the_commands_of_the_compose_file_train_and_export_all_metrics(tmp_path):
    """Run them without containers: the broker's file, the server and the clients."""
    pytest.importorskip("torch")
    need_broker()
    config = (DEPLOY / "mosquitto.conf").read_text()
    broker = Mosquitto(tmp_path, config.replace("listener 1883", "listener @PORT@ 127.0.0.1"))
    broker.start()
    port = str(free_port())
    places = {
        "mqtt://broker": f"mqtt://127.0.0.1:{broker.port}",
        "9100": port,
        "0.0.0.0": "127.0.0.1",
        "2000": "300",  # iterations
    }
    wanted = set(NAME.findall(json.dumps([targets(), ALERTS])))
    found: set[str] = set()
    try:
        with Processes() as processes:
            for name, arguments in commands().items():
                (tmp_path / name).mkdir()
                given = [places.get(argument, argument) for argument in arguments]
                command = [sys.executable, "-m", "fedtern", *given]
                processes.running[name] = subprocess.Popen(command, cwd=tmp_path / name)
            end = time.monotonic() + 120
            while processes.running["server"].poll() is None:
                assert time.monotonic() < end
                with suppress(OSError):
                    found |= scrape(int(port)).keys()
                time.sleep(0.1)
            assert processes.running["server"].returncode == 0
    finally:
        broker.stop()
    assert wanted <= found
    (run,) = (tmp_path / "server" / "runs").iterdir()
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] > 0.8
