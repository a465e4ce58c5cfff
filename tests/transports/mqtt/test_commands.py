"""The commands ``fedtern serve``, ``join`` and ``demo mqtt``."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("aiomqtt")

from brokers import MOSQUITTO, Processes, free_port
from test_experiments_over_mqtt import simulate_locally
from typer.testing import CliRunner

from fedtern import DurableServer, Environment, Store
from fedtern.cli import app
from fedtern.report import load_run
from fedtern.runs import Experiment
from fedtern.training.tasks import get_task
from fedtern.transports.mqtt.experiment_server import ExperimentServer
from fedtern.transports.mqtt.metrics import serve_metrics
from fedtern.transports.mqtt.stats import Stats

EXPERIMENT = [
    "--clients",
    "3",
    "--participation",
    "2/3",
    "--classes-per-client",
    "4",
    "--seed",
    "1",
]
EXPERIMENT += ["--iterations", "300", "--evaluate-every", "50", "--momentum", "0.5"]
METHOD = "stc:p_up=1/20,p_down=1/20"


@pytest.fixture(autouse=True)
def _restore_globals():
    """Restore logging, which commands set up for a whole process."""
    handlers = logging.root.handlers[:]
    yield
    logging.root.handlers[:] = handlers


class Commands(Processes):
    """Commands that run in a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    def start(self, name: str, *arguments: str) -> None:
        with (self.directory / f"{name}.err").open("ab") as said:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "fedtern", *arguments], cwd=self.directory, stderr=said
            )

    def stop(self, name: str, number: signal.Signals) -> None:
        """Stop a command with a signal; unless it is SIGKILL, check that it exits cleanly."""
        if number == signal.SIGKILL:
            return self.kill(name)
        process = self.running.pop(name)
        process.send_signal(number)
        code = process.wait(60)
        said = (self.directory / f"{name}.err").read_text()
        assert code == 130, said
        assert said.splitlines()[-1] == "stopped"
        assert "Traceback" not in said
        return None


@pytest.mark.slow
def test_stopped_and_restarted_commands_give_the_model_of_the_local_simulation(mosquitto, tmp_path):
    broker = ["--broker", f"mqtt://127.0.0.1:{mosquitto.port}", "--federation", "cli"]
    serve = ["serve", *broker, *EXPERIMENT, "--method", METHOD, "--exact", "--store", "server"]
    experiment = Experiment.of(
        "logistic-digits",
        METHOD,
        Environment(clients=3, participation=2 / 3, classes_per_client=4),
        iterations=300,
        momentum=0.5,
        evaluate_every=50,
        seed=1,
    )
    metrics = tmp_path / "runs" / f"{experiment.digest}-mqtt" / "metrics.jsonl"

    def until(lines: int) -> None:
        end = time.monotonic() + 180
        while not metrics.exists() or len(metrics.read_text().splitlines()) < lines:
            assert time.monotonic() < end
            assert all(process.poll() is None for process in commands.running.values())
            time.sleep(0.01)

    with Commands(tmp_path) as commands:
        commands.start("server", *serve)
        join = {str(i): ["join", *broker, "--client", str(i), "--store", str(i)] for i in range(3)}
        for i, arguments in join.items():
            commands.start(i, *arguments)
        stops = [
            ("server", signal.SIGKILL),
            ("1", signal.SIGKILL),
            ("server", signal.SIGTERM),
            ("1", signal.SIGINT),
            ("server", signal.SIGINT),
        ]
        for lines, (name, how) in enumerate(stops, 1):
            until(lines)
            commands.stop(name, how)
            commands.start(name, *(serve if name == "server" else join[name]))
        for process in commands.running.values():
            assert process.wait(180) == 0
    host = ExperimentServer(experiment, get_task(experiment.task).load(), "cli", tmp_path / "again")
    with Store(tmp_path / "server") as store:
        found = DurableServer(host.server, store).weights
        assert found.tobytes() == simulate_locally(experiment).tobytes()
    run = load_run(metrics.parent)
    assert run.config["finished"]
    iterations = [row["iteration"] for row in run.evaluations]
    assert iterations == sorted(iterations)
    assert iterations[-1] == 300


@pytest.mark.slow
def test_killed_commands_finish_a_federation_with_secure_aggregation(mosquitto, tmp_path):
    pytest.importorskip("cryptography")
    broker = ["--broker", f"mqtt://127.0.0.1:{mosquitto.port}", "--federation", "secret"]
    method = "secure_topk:p_up=1/20,p_down=1/20"
    serve = ["serve", *broker, "--method", method, "--store", "server", "--deadline", "6"]
    serve += ["--clients", "5", "--participation", "1", "--min-clients", "4"]
    serve += ["--iterations", "120", "--evaluate-every", "10"]

    def until(lines: int) -> None:
        end = time.monotonic() + 180
        while True:
            metrics = list(tmp_path.glob("runs/*-mqtt/metrics.jsonl"))
            if metrics and len(metrics[0].read_text().splitlines()) >= lines:
                return
            assert time.monotonic() < end
            assert all(process.poll() is None for process in commands.running.values())
            time.sleep(0.01)

    with Commands(tmp_path) as commands:
        commands.start("server", *serve)
        join = {str(i): ["join", *broker, "--client", str(i), "--store", str(i)] for i in range(5)}
        for i, arguments in join.items():
            commands.start(i, *arguments)
        for lines, name in ((2, "1"), (4, "server"), (6, "2")):
            until(lines)
            commands.stop(name, signal.SIGKILL)
            commands.start(name, *(serve if name == "server" else join[name]))
        for process in commands.running.values():
            assert process.wait(180) == 0
    run = load_run(next(tmp_path.glob("runs/*-mqtt")))
    assert run.config["finished"]
    assert run.evaluations[-1]["round"] == 120
    assert run.evaluations[-1]["accuracy"] > 0.85
    assert (tmp_path / "server" / "secure.json").exists()
    log = (tmp_path / "server.err").read_text()
    assert "Traceback" not in log


@pytest.mark.slow
@pytest.mark.parametrize("here", ["serve", "join"])
def test_serve_and_join_exit_at_the_end_of_the_federation(
    mosquitto, tmp_path, monkeypatch, caplog, here
):
    """One side runs in this process, so that its output is visible."""
    monkeypatch.chdir(tmp_path)
    broker = ["--broker", f"mqtt://127.0.0.1:{mosquitto.port}", "--federation", "cli"]
    serve = [
        "serve",
        *broker,
        *EXPERIMENT,
        "--min-clients",
        "3",
        "--metrics-port",
        str(free_port()),
    ]
    with Commands(tmp_path) as commands:
        if here == "join":
            commands.start("server", *serve)
        for i in range(1 if here == "join" else 0, 3):
            commands.start(str(i), "join", *broker, "--client", str(i))
        mine = ["join", *broker, "--client", "0", "--store", "0"] if here == "join" else serve
        result = CliRunner().invoke(app, mine)
        assert result.exit_code == 0, result.output
        for process in commands.running.values():
            assert process.wait(120) == 0
    if here == "serve":
        assert "round 300: 3 present, 0 selected  accuracy" in caplog.text
        assert "view it with: fedtern report runs/" in result.stdout


@pytest.mark.slow
def test_a_federation_with_krum_gives_the_model_of_fedtern_run(mosquitto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--clients", "5", "--participation", "1", "--iterations", "20"]
    options += ["--method", "fedavg:local_steps=5", "--aggregate", "krum:1"]
    done = CliRunner().invoke(app, ["run", *options, "--workers", "0"])
    assert done.exit_code == 0, done.output
    broker = ["--broker", f"mqtt://127.0.0.1:{mosquitto.port}", "--federation", "krum"]
    with Commands(tmp_path) as commands:
        commands.start("server", "serve", *broker, *options, "--exact", "--cap", "0")
        for i in range(5):
            commands.start(str(i), "join", *broker, "--client", str(i))
        for process in commands.running.values():
            assert process.wait(120) == 0
    local, mqtt = (
        next(
            path for path in (tmp_path / "runs").iterdir() if path.name.endswith("-mqtt") == is_mqtt
        )
        for is_mqtt in (False, True)
    )
    assert mqtt.name == f"{local.name}-mqtt"
    models = [(path / "model.safetensors").read_bytes() for path in (local, mqtt)]
    assert models[0] == models[1]
    assert load_run(mqtt).config["method"]["aggregate"] == "krum:1"


@pytest.mark.slow
@pytest.mark.skipif(MOSQUITTO is None, reason="NO MQTT BROKER: install mosquitto")
def test_the_demo_prints_a_table_and_writes_a_report(tmp_path, monkeypatch):
    pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    command = ["demo", "mqtt", "--clients", "2", "--rounds", "30"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    last = next(line for line in reversed(lines) if "%" in line).split()
    assert last[:3] == ["2", "0", "30"]
    assert float(last[3].rstrip("%")) > 30
    assert any(line.startswith("uploads ") for line in lines)
    assert (tmp_path / "demo-mqtt" / "report.html").exists()
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1
    assert "already exists" in again.stderr


def test_a_demo_without_a_broker_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr("fedtern.transports.mqtt.local_broker.find_mosquitto", lambda: None)
    result = CliRunner().invoke(app, ["demo", "mqtt"])
    assert result.exit_code == 1
    assert "apt install mosquitto" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serve", "--broker", "http://here"], "a broker URL has the form mqtt://"),
        (["serve", "--federation", "a/b"], "a federation's name must have"),
        (["serve", "--method", "nonsense"], "Unknown method 'nonsense'"),
        (["serve", "--cap", "0.5"], "cap must be at least 1, or 0 for no limit, got 0.5"),
        (["serve", "--quorum", "0"], "quorum must be at least 1, got 0"),
        (
            ["serve", "--clients", "4", "--participation", "1/2", "--quorum", "3"],
            "at most 2, the",
        ),
        (
            ["serve", "--clients", "4", "--exact", "--participation", "1/2", "--quorum", "3"],
            "at most the cohort size 2",
        ),
        (
            ["serve", "--clients", "10", "--min-clients", "11"],
            "min-clients must be at most",
        ),
        (["serve", "--aggregate", "median"], "Method 'stc' does not support aggregate=median"),
        (
            ["serve", "--method", "fedavg", "--aggregate", "krum:2", "--quorum", "6"],
            "aggregation 'krum' needs a quorum of at least 7, got 6",
        ),
        (["join", "--client", "0", "--broker", "http://here"], "a broker URL has the form mqtt://"),
        (["join", "--client", "0", "--federation", "#"], "a federation's name must have"),
    ],
)
def test_invalid_options_are_one_line_on_stderr(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("fedtern: ")
    assert sentence in line


@pytest.mark.parametrize("command", [["serve"], ["join", "--client", "0"]])
@pytest.mark.parametrize(
    "url", ["mqtts://me:hush-hush@here", "http://me:hush-hush@here", "me:hush-hush@h"]
)
def test_a_password_on_the_command_line_is_refused_and_not_printed(
    command, url, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*command, "--broker", url, "--store", "kept"])
    assert result.exit_code == 1
    assert "FEDTERN_MQTT_PASSWORD" in result.stderr or "a broker URL has the form" in result.stderr
    assert "hush" not in result.output
    assert not list(tmp_path.iterdir())


def test_counters_are_served_to_prometheus():
    stats = Stats(rounds=7, counted=21, capped=5, present=4, cohort=3, up_bytes=999)
    port = free_port()
    stats.refused["late"] = 2
    stats.seconds["decode"] = 1.5
    with serve_metrics(stats, "wards", port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            lines = page.read().decode().splitlines()
        stats.rounds += 1
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            assert 'fedtern_rounds_total{federation="wards"} 8.0' in page.read().decode()
        with pytest.raises(Exception, match=f"Metrics port {port} cannot be used"):
            serve_metrics(stats, "wards", port).__enter__()
    for expected in (
        'fedtern_rounds_total{federation="wards"} 7.0',
        'fedtern_uploads_counted_total{federation="wards"} 21.0',
        'fedtern_uploads_capped_total{federation="wards"} 5.0',
        'fedtern_uploads_late_total{federation="wards"} 2.0',
        'fedtern_clients_present{federation="wards"} 4.0',
        'fedtern_cohort{federation="wards"} 3.0',
        'fedtern_messages_refused_total{federation="wards",reason="late"} 2.0',
        'fedtern_phase_seconds_total{federation="wards",phase="decode"} 1.5',
        'fedtern_payload_bytes_total{direction="up",federation="wards"} 999.0',
    ):
        assert expected in lines
