"""Run the rounds and evaluate the model after each."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from digits import task
from fedtern.transports.flower import Compressed

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes = int(config["min-nodes"])
    share = float(config["fraction-evaluate"])
    torch.manual_seed(0)
    initial = ArrayRecord(task.Net().state_dict())
    strategy: Strategy = FedAvg(1.0, share, nodes, nodes if share else 0, nodes)
    strategy = Compressed(strategy, store=str(config["store"]) or None)
    strategy.start(
        grid,
        initial,
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return loss and accuracy on the test examples."""
    torch.set_num_threads(1)
    net = task.Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    pixels, labels = task.load_data()
    loss, accuracy = task.test(net, (pixels[: task.TEST], labels[: task.TEST]))
    return MetricRecord({"loss": loss, "accuracy": accuracy})
