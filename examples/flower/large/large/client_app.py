"""Train a large model for one step on a node, with or without compression."""

from __future__ import annotations

from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedtern.transports.flower import compression
from large.task import make_model

compress = compression()


def maybe_compressed(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Use the mod only in the runs that compress."""
    if context.run_config["compressed"]:
        return compress(message, context, call_next)
    return call_next(message, context)


app = ClientApp(mods=[maybe_compressed])


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    config = context.run_config
    model = make_model(int(config["layers"]), int(config["width"]))
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    inputs = torch.randn(4, int(config["width"]), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    metrics = MetricRecord({"num-examples": 4, "train-loss": float(loss.detach())})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
