"""Train and evaluate the model on a node."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits import task
from fedtern.transports.flower import compression

app = ClientApp(mods=[compression()])


@app.train()
def train(message: Message, context: Context) -> Message:
    net = received(message)
    data = own_data(context)
    config = message.content.config_records["config"]
    seed = int(str(config["server-round"])) * 1000 + int(context.node_config["partition-id"])
    steps = int(context.run_config["local-steps"])
    rate = float(context.run_config["learning-rate"])
    loss = task.train(net, data, steps, rate, seed)
    metrics = MetricRecord({"num-examples": len(data[1]), "train-loss": loss})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net = received(message)
    data = own_data(context)
    loss, accuracy = task.test(net, data)
    metrics = MetricRecord({"num-examples": len(data[1]), "eval-loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def received(message: Message) -> task.Net:
    """Return the model that the server sent."""
    torch.set_num_threads(1)
    net = task.Net()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return net


def own_data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the examples of this node."""
    partition = int(context.node_config["partition-id"])
    return task.share_of(partition, int(context.node_config["num-partitions"]))
