"""A client whose loss is the distance of the weights from a target of its own."""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.app import Message as Reply
from flwr.clientapp import ClientApp

from fedtern.transports.flower import compression

app = ClientApp(mods=[compression()])


@app.train()
def train(message, context):
    time.sleep(float(context.run_config.get("seconds", 0)))
    number = int(context.node_config["partition-id"]) + 1
    arrays = message.content["arrays"]
    changed = {name: Array(step(array.numpy(), number)) for name, array in arrays.items()}
    metrics = MetricRecord({"num-examples": 10 * number, "loss": distance(arrays, number)})
    return Reply(RecordDict({"arrays": ArrayRecord(changed), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    number = int(context.node_config["partition-id"]) + 1
    loss = distance(message.content["arrays"], number)
    metrics = {"num-examples": 10 * number, "eval-loss": loss}
    return Reply(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def step(weights, number):
    target = np.linspace(-number, number, weights.size, dtype=np.float32).reshape(weights.shape)
    return weights + np.float32(0.1) * (target - weights)


def distance(arrays, number):
    return float(sum(np.abs(array.numpy() - number).sum() for array in arrays.values()))
