"""``fedtern serve`` and ``join``: federations over an MQTT broker."""

from __future__ import annotations

import logging
import math
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedtern.cli.options import (
    DataDir,
    Imports,
    TaskOption,
    Track,
    TrainingOptions,
    Watch,
    command_line,
    complete_method_name,
    load_tasks,
    with_options,
)
from fedtern.cli.progress import summary
from fedtern.cli.signals import run_until_signal
from fedtern.cli.terminal import CurrentStderrHandler, report_errors
from fedtern.cli.watch import live_page
from fedtern.core.methods.robust import min_uploads
from fedtern.core.protocol import DEFAULT_CAP, NormCap
from fedtern.federation.round_policy import CohortSelection, check_quorum
from fedtern.federation.secure_rounds import check_secure_policy
from fedtern.privacy.secure import MIN_CLIENTS, shared_positions_of
from fedtern.runs import Evaluation, Experiment
from fedtern.runs.run_directory import run_path
from fedtern.runs.trackers import make_tracker
from fedtern.store import Store
from fedtern.transports.mqtt import (
    AllClients,
    Broker,
    Limits,
    MqttServer,
    RoundPolicy,
    Sample,
    Scheduled,
    join,
    serve,
)
from fedtern.transports.mqtt.client_loop import fetch_description
from fedtern.transports.mqtt.metrics import serve_metrics
from fedtern.transports.mqtt.topics import Topics

_PASSWORD = "FEDTERN_MQTT_PASSWORD"  # an environment variable

BrokerUrl = Annotated[
    str,
    typer.Option("--broker", help="Broker, for example mqtt://host:1883 or mqtts://user@host."),
]
FederationName = Annotated[str, typer.Option(help="Name of the federation.")]
Ca = Annotated[
    Path | None,
    typer.Option(help="CA certificates to trust.", show_default="those of the system"),
]
Cert = Annotated[Path | None, typer.Option(help="Client certificate, if the broker requires one.")]
Key = Annotated[
    Path | None,
    typer.Option(help="Private key of the certificate.", show_default="in the file of --cert"),
]
StoreDirectory = Annotated[
    Path | None, typer.Option("--store", help="Directory for state that survives a restart.")
]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Continue if data in --store is damaged, without the lost data; see `fedtern store"
        " check`.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every round.")]


def _parse_broker(url: str, ca: Path | None, cert: Path | None, key: Path | None) -> Broker:
    password = os.environ.get(_PASSWORD)
    broker = Broker.parse(url, password=password, ca=ca, certificate=cert, key=key)
    if Broker.parse(url).password is not None:
        raise ValueError(
            "--broker must not contain a password: other users can see it in the list of processes,"
            f" and it is saved with the run. Set the environment variable {_PASSWORD} instead."
        )
    return broker


def _parse_cap(factor: float) -> NormCap | None:
    if factor == 0:
        return None
    if not 1 <= factor < math.inf:
        raise ValueError(f"cap must be at least 1, or 0 for no limit, got {factor:g}")
    return NormCap(factor)


def set_up_logging(verbose: bool) -> None:
    """Log to standard error, with times.

    Args:
        verbose: Whether to log every round.

    """
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s", handlers=[CurrentStderrHandler()]
    )
    logging.getLogger("fedtern.mqtt").setLevel(logging.DEBUG if verbose else logging.INFO)
    # fedtern.mqtt logs the same events in its own words.
    logging.getLogger("fedtern.mqtt.paho").setLevel(logging.CRITICAL)


@with_options(TrainingOptions)
def serve_command(
    options: TrainingOptions,
    broker: BrokerUrl = "mqtt://localhost",
    federation: FederationName = "fedtern",
    task: TaskOption = "logistic-digits",
    method: Annotated[
        str,
        typer.Option(
            help="Method, for example stc:p_up=1/100; see `fedtern methods`.",
            autocompletion=complete_method_name,
        ),
    ] = "stc",
    store: StoreDirectory = None,
    accept_loss: AcceptLoss = False,
    deadline: Annotated[float, typer.Option(help="Seconds until a round ends.")] = 60.0,
    quorum: Annotated[
        int | None,
        typer.Option(
            help="Uploads that a round needs to count.",
            show_default="1; 3 with secure aggregation; 2 LIARS + 3 with krum",
        ),
    ] = None,
    min_clients: Annotated[
        int | None,
        typer.Option(
            help="Clients that must be present before a round starts.", show_default="the quorum"
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            help="Select the same cohorts as `fedtern run`, and wait for all of their uploads."
        ),
    ] = False,
    cap: Annotated[
        float,
        typer.Option(
            help="Largest influence of an upload, as a multiple of the median; 0 for no limit, as"
            " in `fedtern run`."
        ),
    ] = DEFAULT_CAP.factor,
    rate: Annotated[
        float, typer.Option(help="Messages per second that are accepted from each client.")
    ] = 2.0,
    max_packet: Annotated[int, typer.Option(help="Largest MQTT packet in bytes.")] = 1 << 20,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of a metrics server for Prometheus.")
    ] = None,
    metrics_address: Annotated[
        str, typer.Option(help="Address to bind the metrics server to.")
    ] = "127.0.0.1",
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    verbose: Verbose = False,
    watch: Watch = False,
    track: Track = None,
) -> None:
    """Serve a federation over an MQTT broker.

    Clients join it with `fedtern join`. If the broker needs a password, set the environment
    variable FEDTERN_MQTT_PASSWORD.
    """
    import torch

    from fedtern.training.tasks import get_task
    from fedtern.transports.mqtt.experiment_server import ExperimentServer, encode_experiment

    with report_errors(), ExitStack() as stack:
        experiment = options.experiment(task, method, strict=True)
        address = _parse_broker(broker, ca, cert, key)
        Topics(federation)  # raises if the name cannot be part of a topic
        policy = _round_policy(experiment, None if exact else deadline, quorum, min_clients)
        set_up_logging(verbose)
        torch.set_num_threads(options.threads)
        opened = (
            None if store is None else stack.enter_context(Store(store, accept_loss=accept_loss))
        )
        path = run_path(experiment, options.out, "mqtt")
        host = ExperimentServer(
            experiment,
            get_task(experiment.task).load(options.data_dir),
            federation,
            path,
            store=opened,
            command=command_line(),
            progress=_log_evaluation,
            callbacks=[make_tracker(text, path.name) for text in track or ()],
            cap=_parse_cap(cap),
        )
        stack.callback(host.close)
        stack.enter_context(live_page([host.run.path], watch))
        stack.enter_context(serve_metrics(host.stats, federation, metrics_port, metrics_address))

        async def serve_rounds() -> None:
            async with host.status_updates():
                await serve(
                    host.server,
                    address,
                    replace(policy, rounds=host.rounds),
                    limits=Limits(rate=rate, packet_bytes=max_packet),
                    stats=host.stats,
                    about=encode_experiment(experiment),
                    on_round=host.round_finished,
                    quantum=host.quantum,
                )

        run_until_signal(serve_rounds())
        host.finish()
    typer.echo(f"saved to {host.run.path}; view it with: fedtern report {host.run.path}")


def _round_policy(
    experiment: Experiment, deadline: float | None, quorum: int | None, min_clients: int | None
) -> RoundPolicy:
    """Return the policy that starts and ends rounds.

    Args:
        experiment: The experiment.
        deadline: Seconds until a round ends; None to select the cohorts of ``fedtern run`` and wait
            for all of their uploads.
        quorum: Uploads that a round needs to count; None for the smallest possible number.
        min_clients: Clients that must be present before a round starts.

    Raises:
        ValueError: The federation has fewer clients than the policy needs.

    """
    environment = experiment.environment
    cohorts: CohortSelection = AllClients()
    if deadline is None:
        cohorts = Scheduled(environment, experiment.seed)
    elif environment.participation < 1:
        cohorts = Sample(fraction=environment.participation, seed=experiment.seed)
    method = experiment.make_method()
    is_secure = shared_positions_of(method) is not None
    if quorum is None:
        quorum = MIN_CLIENTS if is_secure else min_uploads(method.aggregate)
    policy = RoundPolicy(cohorts, deadline=deadline, quorum=quorum, min_clients=min_clients)
    if is_secure:
        check_secure_policy(policy)
    check_quorum(method.aggregate, policy)
    # RoundPolicy cannot check this: it does not know how many clients the federation has.
    if quorum > environment.cohort_size:
        raise ValueError(
            f"quorum must be at most {environment.cohort_size}, the size of a cohort of"
            f" {environment.clients} clients at participation {environment.participation:g}, got"
            f" {quorum}"
        )
    if policy.required_clients > environment.clients:
        raise ValueError(
            f"min-clients must be at most {environment.clients}, the number of clients, got"
            f" {policy.required_clients}"
        )
    return policy


def _log_evaluation(evaluation: Evaluation, mqtt_server: MqttServer) -> None:
    logging.getLogger("fedtern.mqtt").info(
        "round %s: %s present, %s selected  %s",
        evaluation.round,
        mqtt_server.stats.present,
        mqtt_server.stats.cohort,
        summary(evaluation),
    )


def _log_privacy(experiment: Experiment, client: int) -> None:
    """Log the differential privacy that a client gets."""
    settings = experiment.privacy
    if settings is None:
        return
    limit = "" if settings.budget is None else f", budget {settings.budget:g}"
    where = "this client" if settings.model == "local" else "the server, which must be trusted,"
    logging.getLogger("fedtern.mqtt").info(
        "client %s: %s adds noise of %g times the clip %g to updates (delta %g%s)",
        client,
        where,
        settings.noise_multiplier,
        settings.clip,
        settings.delta,
        limit,
    )


def join_command(
    client: Annotated[int, typer.Option(help="Number of this client, from 0.")],
    broker: BrokerUrl = "mqtt://localhost",
    federation: FederationName = "fedtern",
    data_dir: DataDir = None,
    store: StoreDirectory = None,
    accept_loss: AcceptLoss = False,
    device: Annotated[str, typer.Option(help="Device of torch: cpu, cuda, cuda:1, ...")] = "cpu",
    imports: Imports = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    verbose: Verbose = False,
) -> None:
    """Join a federation as one of its clients.

    The server (`fedtern serve`) chooses the task, the method and the data of each client. If the
    broker needs a password, set the environment variable FEDTERN_MQTT_PASSWORD.
    """
    import torch

    from fedtern.training.tasks import get_task
    from fedtern.transports.mqtt.experiment_client import ExperimentClient
    from fedtern.transports.mqtt.experiment_server import decode_experiment

    with report_errors(), ExitStack() as stack:
        address = _parse_broker(broker, ca, cert, key)
        Topics(federation)  # raises if the name cannot be part of a topic
        set_up_logging(verbose)
        # As in the local engine: sums by several threads differ in their last bits.
        torch.set_num_threads(1)
        load_tasks(imports)
        opened = (
            None if store is None else stack.enter_context(Store(store, accept_loss=accept_loss))
        )

        async def take_part() -> None:
            experiment = decode_experiment(await fetch_description(address, federation, client))
            _log_privacy(experiment, client)
            dataset = get_task(experiment.task).load(data_dir)
            trainer = ExperimentClient(
                experiment, dataset, client, federation, store=opened, device=device
            )
            await join(
                trainer.client,
                trainer.train,
                address,
                num_examples=trainer.num_examples,
                on_upload=trainer.uploaded,
            )

        run_until_signal(take_part())
