"""``fedtern serve`` and ``join``: federations over an MQTT broker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from fedtern.cli import options as o
from fedtern.cli.errors import report_errors
from fedtern.cli.progress import summary
from fedtern.cli.signals import command_line
from fedtern.federation.round_policy import Cohorts, Everybody
from fedtern.runs import Evaluation, Experiment
from fedtern.store import Store
from fedtern.training.tasks import get_task
from fedtern.transports.mqtt import (
    Broker,
    Coordinator,
    Limits,
    RoundPolicy,
    Sample,
    Scheduled,
    join,
    serve,
)
from fedtern.transports.mqtt.client_loop import about
from fedtern.transports.mqtt.experiment_client import ExperimentClient
from fedtern.transports.mqtt.experiment_server import ExperimentServer, describe, understand
from fedtern.transports.mqtt.metrics import exported
from fedtern.transports.mqtt.topics import Topics

_PASSWORD = "FEDTERN_MQTT_PASSWORD"  # the environment variable

Url = Annotated[str, typer.Option("--broker", help="Like mqtt://host:1883 or mqtts://me@host.")]
Name = Annotated[str, typer.Option(help="The federation's name.")]
Ca = Annotated[Path | None, typer.Option(help="Certificates to trust. [default: the system's]")]
Cert = Annotated[Path | None, typer.Option(help="Our certificate, if the broker asks for one.")]
Key = Annotated[Path | None, typer.Option(help="Its private key, if that is another file.")]
Keep = Annotated[
    Path | None, typer.Option("--store", help="Directory to go on from after a restart.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line for each round.")]


def _broker(url: str, ca: Path | None, cert: Path | None, key: Path | None) -> Broker:
    password = os.environ.get(_PASSWORD)
    place = Broker.parse(url, password=password, ca=ca, certificate=cert, key=key)
    if Broker.parse(url).password is not None:
        raise ValueError(
            "a password in --broker can be read by whoever lists processes, and is kept with what"
            f" was typed: put it into the environment variable {_PASSWORD} instead"
        )
    return place


def set_up_log(verbose: bool) -> None:
    """Log lines with their time, on the standard error output."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("fedtern.mqtt").setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger("fedtern.mqtt.paho").setLevel(logging.CRITICAL)  # we say it ourselves


def run_to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Run until it is done; Ctrl-C and SIGTERM end it in good order."""

    async def interruptible() -> None:
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        await task

    try:
        asyncio.run(interruptible())
    except asyncio.CancelledError:
        typer.echo("stopped", err=True)
        raise typer.Exit(130) from None


@o.takes(o.Training)
def serve_command(
    options: o.Training,
    broker: Url = "mqtt://localhost",
    federation: Name = "fedtern",
    task: Annotated[str, typer.Option(help="What to learn.")] = "logistic-digits",
    method: Annotated[str, typer.Option(help="What to send, like stc:p_up=1/100.")] = "stc",
    store: Keep = None,
    deadline: Annotated[float, typer.Option(help="Seconds in which to upload.")] = 60.0,
    quorum: Annotated[int, typer.Option(help="Uploads without which a round is void.")] = 1,
    least: Annotated[
        int | None, typer.Option(help="Clients to wait for before a round. [default: the quorum]")
    ] = None,
    exact: Annotated[
        bool, typer.Option(help="Call whom `fedtern run` would, and wait for all of them.")
    ] = False,
    rate: Annotated[float, typer.Option(help="Messages a second from each client.")] = 2.0,
    max_packet: Annotated[int, typer.Option(help="Longest message, in bytes.")] = 1 << 20,
    metrics_port: Annotated[
        int | None, typer.Option(help="Show counters for Prometheus on this port.")
    ] = None,
    metrics_address: Annotated[str, typer.Option(help="And at this address.")] = "127.0.0.1",
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    verbose: Verbose = False,
) -> None:
    """Run a federation on a broker; clients take part with `fedtern join`.

    The password, if there is one, is in FEDTERN_MQTT_PASSWORD.
    """
    with report_errors(), ExitStack() as stack:
        experiment = options.experiment(task, method, strict=True)
        place = _broker(broker, ca, cert, key)
        Topics(federation)  # or its name cannot be used
        plan = _plan(experiment, None if exact else deadline, quorum, least)
        set_up_log(verbose)
        torch.set_num_threads(options.threads)
        kept = None if store is None else stack.enter_context(Store(store))
        host = ExperimentServer(
            experiment,
            get_task(experiment.task).load(options.data_dir),
            federation,
            options.out / f"{experiment.digest}-mqtt",
            store=kept,
            command=command_line(),
            progress=_say,
        )
        stack.callback(host.close)
        stack.enter_context(exported(host.stats, federation, metrics_port, metrics_address))
        run_to_the_end(
            serve(
                host.server,
                place,
                replace(plan, rounds=host.rounds),
                limits=Limits(rate=rate, packet_bytes=max_packet),
                stats=host.stats,
                about=describe(experiment),
                on_round=host.moved,
            )
        )
        host.conclude()
    typer.echo(f"kept in {host.run.path}; see it with: fedtern report {host.run.path}")


def _plan(
    experiment: Experiment, deadline: float | None, quorum: int, least: int | None
) -> RoundPolicy:
    """When rounds begin and end; without a deadline as they would in ``fedtern run``."""
    environment = experiment.environment
    cohorts: Cohorts = Everybody()
    if deadline is None:
        cohorts = Scheduled(environment, experiment.seed)
    elif environment.participation < 1:
        cohorts = Sample(share=environment.participation, seed=experiment.seed)
    plan = RoundPolicy(cohorts, deadline=deadline, quorum=quorum, least=least)
    # A share of those present may be any number; there are only so many who can be.
    if quorum > environment.cohort_size:
        raise ValueError(
            f"quorum must be at most {environment.cohort_size}, which is how many of"
            f" {environment.clients} clients are called at a participation of"
            f" {environment.participation:g}, got {quorum}"
        )
    if plan.needed > environment.clients:
        raise ValueError(
            f"least must be at most {environment.clients}, which is how many clients there are,"
            f" got {plan.needed}"
        )
    return plan


def _say(found: Evaluation, coordinator: Coordinator) -> None:
    present, called = coordinator.stats.present, coordinator.stats.cohort
    logging.getLogger("fedtern.mqtt").info(
        "round %s: %s present, %s called  %s", found.round, present, called, summary(found)
    )


def join_command(
    client: Annotated[int, typer.Option(help="Which client this is, from 0.")],
    broker: Url = "mqtt://localhost",
    federation: Name = "fedtern",
    data_dir: o.DataDir = None,
    store: Keep = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    verbose: Verbose = False,
) -> None:
    """Take part in a federation that `fedtern serve` runs, with this client's share of the data.

    What is learned, and how, the server says. The password, if there is one, is in
    FEDTERN_MQTT_PASSWORD.
    """
    with report_errors(), ExitStack() as stack:
        place = _broker(broker, ca, cert, key)
        Topics(federation)  # or its name cannot be used
        set_up_log(verbose)
        torch.set_num_threads(1)  # or its bits would be others than the local engine's
        kept = None if store is None else stack.enter_context(Store(store))

        async def take_part() -> None:
            experiment = understand(await about(place, federation, client))
            dataset = get_task(experiment.task).load(data_dir)
            one = ExperimentClient(
                experiment, dataset, client, federation, store=kept, device=device
            )
            await join(one.client, one.train, place, examples=one.examples, on_upload=one.uploaded)

        run_to_the_end(take_part())
