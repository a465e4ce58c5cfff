"""``compression()``: the mod that compresses the messages of a Flower ``ClientApp``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message, RecordDict

from fedtern.core.errors import RemoteProtocolError
from fedtern.federation.interfaces import ClientLike
from fedtern.transports.flower.arrays import to_arrays, to_vector
from fedtern.transports.flower.federation_spec import FederationSpec
from fedtern.transports.flower.messages import KEY
from fedtern.transports.flower.node import Node, UnusableResult, WorkResult

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]


def compression() -> Mod:
    """Return the mod for a ``ClientApp`` whose server uses ``Compressed``.

    The functions of the app get the arrays of the model and return arrays, as without the mod. The
    mod compresses their change. For this it keeps a state of the size of two models: in a
    simulation in the node's context, elsewhere in a directory. ``fedtern-state`` in the node's
    configuration names the directory; the default is in the user's home.

    Returns:
        The mod, for ``ClientApp(mods=[compression()])``.

    """

    def compress(message: Message, context: Context, app: App) -> Message:
        data = find_request(message)
        if data is None:
            if message.metadata.message_type.partition(".")[0] in ("train", "evaluate"):
                raise RemoteProtocolError(
                    "This ClientApp uses the mod compression(), but its server sends arrays."
                    " Wrap the strategy in fedtern.transports.flower.Compressed, or remove the mod."
                )
            return app(message, context)
        _remove_request(message)

        def work(client: ClientLike, spec: FederationSpec) -> WorkResult:
            return _call_app(app, client, spec, message, context)

        return Node(message, context).handle(data, work)

    return compress


def find_request(message: Message) -> bytes | None:
    """Return the server's request in a message, in any of its records; None if it has none."""
    for record in message.content.config_records.values():
        if isinstance(data := record.get(KEY), bytes):
            return data
    return None


def _remove_request(message: Message) -> None:
    for record in message.content.config_records.values():
        record.pop(KEY, None)


def _call_app(
    app: App, client: ClientLike, spec: FederationSpec, message: Message, context: Context
) -> WorkResult:
    """Call the app as without compression, and return the change of the weights.

    Raises:
        UnusableResult: The app did not return one record of arrays that fit the model.

    """
    weights = np.array(client.weights)
    arrays = to_arrays(weights, spec.layout)
    message.content = RecordDict({spec.arrays_key: arrays, **message.content})
    reply = app(message, context)
    if not message.metadata.message_type.startswith("train") or not reply.has_content():
        return WorkResult(reply)
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise UnusableResult(
            f"expected one ArrayRecord from the train function, got {len(records)}"
        )
    try:
        new_weights = to_vector(records[0], spec.layout)
    except ValueError as error:
        raise UnusableResult(str(error)) from error
    # Compression refuses deltas that are not finite, and names the tensor.
    with np.errstate(over="ignore", invalid="ignore"):
        return WorkResult(reply, new_weights - weights)
