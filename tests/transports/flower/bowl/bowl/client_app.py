"""A node that wants every weight to be its own number, and takes a step in that direction."""

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
    mine = int(context.node_config["partition-id"]) + 1
    arrays = message.content["arrays"]
    changed = {name: Array(step(array.numpy(), mine)) for name, array in arrays.items()}
    metrics = MetricRecord({"num-examples": 10 * mine, "loss": distance(arrays, mine)})
    return Reply(RecordDict({"arrays": ArrayRecord(changed), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    mine = int(context.node_config["partition-id"]) + 1
    metrics = {"num-examples": 10 * mine, "eval-loss": distance(message.content["arrays"], mine)}
    return Reply(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def step(weights, mine):
    aims = np.linspace(-mine, mine, weights.size, dtype=np.float32).reshape(weights.shape)
    return weights + np.float32(0.1) * (aims - weights)


def distance(arrays, mine):
    return float(sum(np.abs(array.numpy() - mine).sum() for array in arrays.values()))
