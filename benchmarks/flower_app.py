"""Uncompressed federated averaging in Flower's simulation; prints the seconds of each round.

`python benchmarks/flower_app.py TASK ROUNDS` uses a hundred SuperNodes. Ten of them train on one
batch of 20 in each round, with the task's model and data. Nothing is evaluated.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import pairwise

for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
    os.environ[name] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from torch.nn import functional  # noqa: E402

CLIENTS = 100
SHARE = 0.1
BATCH = 20


def client_app(task_name: str) -> ClientApp:
    """Training on each SuperNode."""

    def train(message: Message, context: Context) -> Message:
        import tasks  # inside the actor, which keeps its own model and data

        task, model, examples = tasks.prepared(task_name)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        mine = np.arange(int(context.node_config["partition-id"]), len(examples), CLIENTS)
        rng = np.random.default_rng()
        inputs, labels = examples.batch(rng.choice(mine, BATCH), lambda: rng)
        sgd = torch.optim.SGD(model.parameters(), task.learning_rate)
        sgd.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        sgd.step()
        content = RecordDict({"arrays": ArrayRecord(model.state_dict())})
        content["metrics"] = MetricRecord({"num-examples": BATCH})
        return Message(content=content, reply_to=message)

    app = ClientApp()
    app.train()(train)
    return app


def server_app(task_name: str, rounds: int, ends: list[float]) -> ServerApp:
    """FedAvg that records the time when all replies of a round have arrived."""

    def note(replies: list[RecordDict], _key: str) -> MetricRecord:
        ends.append(time.perf_counter())
        if len(replies) != CLIENTS * SHARE:
            raise RuntimeError(f"only {len(replies)} clients answered")
        return MetricRecord({"replies": len(replies)})

    def main(grid: Grid, _context: Context) -> None:
        from fedtern.training.tasks import get_task

        strategy = FedAvg(SHARE, 0.0, min_available_nodes=CLIENTS, train_metrics_aggr_fn=note)
        model = get_task(task_name).build(0)
        strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds)

    app = ServerApp()
    app.main()(main)
    return app


def main() -> None:
    task_name = sys.argv[1]
    rounds = int(sys.argv[2])
    ends: list[float] = []
    run_simulation(
        server_app(task_name, rounds, ends),
        client_app(task_name),
        CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    for before, after in pairwise(ends):
        print("round", after - before)


if __name__ == "__main__":
    main()
