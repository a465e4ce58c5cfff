"""``fedtern demo mqtt``: a broker, a server and five clients, on this machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedtern.cli.commands import Commands
from fedtern.cli.errors import report_errors
from fedtern.cli.mqtt import run_to_the_end, set_up_log
from fedtern.cli.signals import command_line
from fedtern.cli.terminal import console
from fedtern.core.errors import FedternError
from fedtern.data.environment import Environment
from fedtern.report import write_report
from fedtern.runs import Evaluation, Experiment
from fedtern.training.tasks import get_task
from fedtern.transports.mqtt import Broker, Coordinator, RoundPolicy, Sample, serve
from fedtern.transports.mqtt.byte_counter import ByteCounter, counting
from fedtern.transports.mqtt.experiment_server import ExperimentServer, describe
from fedtern.transports.mqtt.local_broker import mosquitto

app = Commands()
NAME, TASK = "demo", "logistic-digits"


@app.callback()
def _demo() -> None:
    """See it work."""


@app.command("mqtt")
def over_mqtt(
    clients: Annotated[int, typer.Option(min=2, help="How many processes take part.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds they play.")] = 300,
    out: Annotated[Path, typer.Option(help="Where the run and the report go.")] = Path("demo-mqtt"),
) -> None:
    """Start a broker, a server and clients on this machine, and watch them learn."""
    environment = Environment(clients=clients, participation=0.6, classes_per_client=2)
    method = "stc:p_up=1/20,p_down=1/20"
    with report_errors(), mosquitto() as port:
        experiment = Experiment.of(
            TASK, method, environment, iterations=rounds, evaluate_every=max(rounds // 15, 1)
        )
        if (out / "run").exists():
            raise FedternError(
                f"{out / 'run'} is there already: remove it, or choose another --out"
            )
        set_up_log(verbose=False)
        run_to_the_end(_play(experiment, port, out))
        written = write_report([out / "run"], out / "report.html").resolve()
    typer.echo(f"report: {written}")


async def _play(experiment: Experiment, port: int, out: Path) -> None:
    dataset, present = get_task(experiment.task).load(), experiment.environment.clients
    async with counting(port) as wire:
        screen = _Screen(wire, present)
        host = ExperimentServer(
            experiment, dataset, NAME, out / "run", command=command_line(), progress=screen.show
        )
        cohorts = Sample(size=experiment.environment.cohort_size, seed=experiment.seed)
        plan = RoundPolicy(cohorts, deadline=10.0, least=present, rounds=host.rounds)
        with _processes(wire.port, present) as running, screen.console.status("learning"):
            serving = asyncio.ensure_future(
                serve(
                    host.server,
                    Broker("127.0.0.1", port),
                    plan,
                    stats=host.stats,
                    about=describe(experiment),
                    on_round=host.moved,
                )
            )
            try:
                while not (await asyncio.wait({serving}, timeout=0.5))[0]:
                    _check(running)
            finally:
                serving.cancel()
            await serving
        await asyncio.sleep(0.1)  # for the last farewells to be counted
        host.close()
        screen.console.print(_table(host, wire))


@contextmanager
def _processes(port: int, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Clients that end with the demonstration, however it ends."""
    join = [sys.executable, "-m", "fedtern", "join", "--federation", NAME]
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


def _check(running: list[subprocess.Popen[bytes]]) -> None:
    """Nobody waits for a client that could not start."""
    for i, process in enumerate(running):
        if process.poll():
            raise FedternError(
                f"client {i} ended with exit code {process.returncode}: see what"
                f" `fedtern join --client {i} --federation {NAME}` says"
            )


class _Screen:
    """A line for each evaluation: live on a terminal, plain in a file."""

    def __init__(self, wire: ByteCounter, clients: int) -> None:
        self.wire, self.clients = wire, clients
        self.console = console(120)
        self._headed = False

    def show(self, found: Evaluation, coordinator: Coordinator) -> None:
        """Where things stand."""
        if not self._headed:
            self.console.print("present  cohort   round  accuracy     wire up   wire down")
            self._headed = True
        stats = coordinator.stats
        self.console.print(
            f"{stats.present:>7}  {stats.cohort:>6}  {found.round:>6}  {found.accuracy:>8.2%}"
            f"  {self.wire.up / 1e3:>7.1f} kB  {self.wire.down / 1e3:>7.1f} kB"
        )


def _table(host: ExperimentServer, wire: ByteCounter) -> Table:
    """What was sent, as payloads and as the sockets saw it, beside uncompressed training."""
    stats, size = host.stats, host.terms.layout.size
    uploads = stats.counted + stats.refused["late"]
    clients = host.experiment.environment.clients
    rows = {
        "uploads": (uploads, stats.up_bytes, wire.up),
        "broadcasts heard": (
            stats.rounds * clients,
            stats.announced_bytes * clients + stats.catch_up_bytes,
            wire.down,
        ),
    }
    table = Table(
        "",
        "messages",
        "payload",
        "on the wire",
        "wire each",
        "dense each",
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
