"""``compression()``: the mod that makes a Flower ``ClientApp`` send next to nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message, RecordDict

from fedtern.core.errors import RemoteProtocolError
from fedtern.federation.interfaces import ClientLike
from fedtern.transports.flower.arrays import to_arrays, to_vector
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.messages import KEY
from fedtern.transports.flower.node import Node, Unusable, Worked

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]


def compression() -> Mod:
    """What to put into ``ClientApp(mods=[...])`` of a node whose server uses ``Compressed``.

    The app's functions are called with the arrays that they would get without it, and what they
    return is compressed on its way out. The state that this takes, which has the size of two
    models, is kept in the directory that ``fedtern-state`` in the node's configuration names, by
    default one of the user's; in a simulation in the node's context.
    """

    def compress(message: Message, context: Context, app: App) -> Message:
        data = request_in(message)
        if data is None:
            if message.metadata.message_type.partition(".")[0] in ("train", "evaluate"):
                raise RemoteProtocolError(
                    "This ClientApp uses the mod compression(), but its server sends arrays."
                    " Wrap the strategy in fedtern.transports.flower.Compressed, or remove the mod."
                )
            return app(message, context)
        _remove_request(message)
        return Node(message, context).handle(
            data, lambda client, charter: _work(client, charter, message, context, app)
        )

    return compress


def request_in(message: Message) -> bytes | None:
    """The frame in a message, wherever it is."""
    for record in message.content.config_records.values():
        if isinstance(data := record.get(KEY), bytes):
            return data
    return None


def _remove_request(message: Message) -> None:
    for record in message.content.config_records.values():
        record.pop(KEY, None)


def _work(
    client: ClientLike, charter: FederationSpec, message: Message, context: Context, app: App
) -> Worked:
    """Let the app do what it does without compression."""
    weights = np.array(client.weights)
    arrays = to_arrays(weights, charter.layout)
    message.content = RecordDict({charter.arrays: arrays, **message.content})
    reply = app(message, context)
    if not message.metadata.message_type.startswith("train") or not reply.has_content():
        return Worked(reply)
    found = list(reply.content.array_records.values())
    if len(found) != 1:
        raise Unusable(f"expected one ArrayRecord from the train function, got {len(found)}")
    try:
        new = to_vector(found[0], charter.layout)
    except ValueError as error:
        raise Unusable(str(error)) from error
    with np.errstate(over="ignore", invalid="ignore"):  # refused when it is compressed, by name
        return Worked(reply, new - weights)
