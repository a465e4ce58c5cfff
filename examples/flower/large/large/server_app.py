"""Train a large model for a few rounds, with or without compression."""

from __future__ import annotations

import time

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from fedtern.transports.flower import Compressed
from large.task import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes = int(config["min-nodes"])
    torch.manual_seed(0)
    model = make_model(int(config["layers"]), int(config["width"]))
    initial = ArrayRecord(model.state_dict())
    del model
    strategy: Strategy = FedAvg(1.0, 0.0, nodes, 0, nodes)
    if config["compressed"]:
        strategy = Compressed(strategy, initial=str(config["initial"]))  # type: ignore[arg-type]

    def note(server_round: int, _arrays: ArrayRecord) -> MetricRecord:
        print(f"finished round {server_round} at {time.time():.2f}", flush=True)
        return MetricRecord({"time": time.time()})

    strategy.start(grid, initial, int(config["num-server-rounds"]), 600, evaluate_fn=note)
