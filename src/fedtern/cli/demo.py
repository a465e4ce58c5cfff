"""``fedtern demo mqtt``: a broker, a server and clients on this machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtern.cli.commands import Commands
from fedtern.cli.mqtt import set_up_logging
from fedtern.cli.options import command_line
from fedtern.cli.progress import quality
from fedtern.cli.signals import run_until_signal
from fedtern.cli.terminal import console, report_errors, spinner
from fedtern.core.errors import FedternError
from fedtern.data.environment import Environment
from fedtern.report import write_report
from fedtern.runs import Evaluation, Experiment
from fedtern.transports.mqtt import Broker, MqttServer, RoundPolicy, Sample, serve
from fedtern.transports.mqtt.byte_counter import ByteCounter, count_bytes
from fedtern.transports.mqtt.local_broker import run_mosquitto

if TYPE_CHECKING:
    from rich.table import Table

    from fedtern.transports.mqtt.experiment_server import ExperimentServer

app = Commands()
FEDERATION = "demo"
TASK = "logistic-digits"


@app.callback()
def _demo() -> None:
    """Run a demonstration."""


@app.command("mqtt")
def over_mqtt(
    clients: Annotated[int, typer.Option(min=2, help="Number of clients, each a process.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 300,
    out: Annotated[Path, typer.Option(help="Directory for the run and the report.")] = Path(
        "demo-mqtt"
    ),
) -> None:
    """Train over a local MQTT broker, and write a report.

    Starts a broker, a server and clients as processes on this machine.
    """
    environment = Environment(clients=clients, participation=0.6, classes_per_client=2)
    method = "stc:p_up=1/20,p_down=1/20"
    with report_errors(), run_mosquitto() as port:
        experiment = Experiment.of(
            TASK, method, environment, iterations=rounds, evaluate_every=max(rounds // 15, 1)
        )
        if (out / "run").exists():
            raise FedternError(f"{out / 'run'} already exists: remove it, or choose another --out")
        set_up_logging(verbose=False)
        run_until_signal(_train(experiment, port, out))
        written = write_report([out / "run"], out / "report.html").resolve()
    typer.echo(f"report: {written}")


async def _train(experiment: Experiment, port: int, out: Path) -> None:
    """Train over a broker on ``port`` and print evaluations and traffic."""
    from fedtern.training.tasks import get_task
    from fedtern.transports.mqtt.experiment_server import ExperimentServer, encode_experiment

    dataset = get_task(experiment.task).load()
    clients = experiment.environment.clients
    async with count_bytes(port) as counter, AsyncExitStack() as stack:
        screen = _Screen(counter)
        host = ExperimentServer(
            experiment,
            dataset,
            FEDERATION,
            out / "run",
            command=command_line(),
            progress=screen.show,
        )
        await stack.enter_async_context(host.status_updates())  # for `fedtern watch`
        cohorts = Sample(size=experiment.environment.cohort_size, seed=experiment.seed)
        policy = RoundPolicy(cohorts, deadline=10.0, min_clients=clients, rounds=host.rounds)
        with _clients(counter.port, clients) as running, spinner(screen.console, "training"):
            serving = asyncio.ensure_future(
                serve(
                    host.server,
                    Broker("127.0.0.1", port),
                    policy,
                    stats=host.stats,
                    about=encode_experiment(experiment),
                    on_round=host.round_finished,
                )
            )
            try:
                while not (await asyncio.wait({serving}, timeout=0.5))[0]:
                    _check_running(running)
            finally:
                serving.cancel()
            await serving
        await asyncio.sleep(0.1)  # so that the last messages are counted
        host.close()
        screen.console.print(_table(host, counter))


@contextmanager
def _clients(port: int, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start clients as processes, and end them with the context."""
    join = [sys.executable, "-m", "fedtern", "join", "--federation", FEDERATION]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for i in range(count):
            command = [*join, "--client", str(i), "--broker", f"mqtt://127.0.0.1:{port}"]
            quiet = subprocess.DEVNULL
            running.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))
        yield running
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _check_running(running: list[subprocess.Popen[bytes]]) -> None:
    """Raise if a client has failed: the server would wait for it forever."""
    for i, process in enumerate(running):
        if process.poll():
            raise FedternError(
                f"client {i} ended with exit code {process.returncode}: run"
                f" `fedtern join --client {i} --federation {FEDERATION}` to see its error"
            )


class _Screen:
    """Prints one line per evaluation, below a header."""

    def __init__(self, counter: ByteCounter) -> None:
        self.counter = counter
        self.console = console(120)
        self._has_header = False

    def show(self, evaluation: Evaluation, mqtt_server: MqttServer) -> None:
        """Print an evaluation."""
        if not self._has_header:
            self.console.print("present  cohort   round  accuracy     wire up   wire down")
            self._has_header = True
        stats = mqtt_server.stats
        self.console.print(
            f"{stats.present:>7}  {stats.cohort:>6}  {evaluation.round:>6}"
            f"  {quality(evaluation):>8}"
            f"  {self.counter.up / 1e3:>7.1f} kB  {self.counter.down / 1e3:>7.1f} kB"
        )


def _table(host: ExperimentServer, counter: ByteCounter) -> Table:
    """Return a table of the traffic: payloads, bytes on the sockets, and uncompressed training."""
    from rich.table import Table

    stats = host.stats
    size = host.terms.layout.size
    uploads = stats.counted + stats.refused["late"]
    clients = host.experiment.environment.clients
    rows = {
        "uploads": (uploads, stats.up_bytes, counter.up),
        "broadcasts received": (
            stats.rounds * clients,
            stats.announced_bytes * clients + stats.catch_up_bytes,
            counter.down,
        ),
    }
    table = Table(
        "",
        "messages",
        "payload",
        "on the wire",
        "per message",
        "uncompressed",
        box=None,
        pad_edge=False,
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for name, (count, payload, total) in rows.items():
        table.add_row(
            name,
            f"{count:,}",
            f"{payload / 1e3:.1f} kB",
            f"{total / 1e3:.1f} kB",
            f"{total / max(count, 1):.0f} B",
            f"{4 * size:,} B",
        )
    return table
