"""``compression()``: the mod that compresses the messages of a Flower ``ClientApp``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import log
from numpy.typing import NDArray

from fedtern.core.carried import changed_values
from fedtern.core.errors import NonFiniteError, RemoteProtocolError
from fedtern.core.protocol.initial import round_initial
from fedtern.core.template import Template
from fedtern.federation.interfaces import ClientLike
from fedtern.transports.flower.arrays import to_numpy, to_record
from fedtern.transports.flower.federation_spec import FederationSpec, digest_of
from fedtern.transports.flower.messages import KEY
from fedtern.transports.flower.node import InitialModel, Node, UnusableResult, WorkResult

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]
MakeArrays = Callable[[], ArrayRecord | Mapping[str, NDArray[Any]]]


def compression(initial: MakeArrays | None = None) -> Mod:
    """Return the mod for a ``ClientApp`` whose server uses ``Compressed``.

    The functions of the app get the arrays of the model and return arrays, as without the mod. The
    mod compresses their change. For this it keeps a state of the size of two models: in a
    simulation in the node's context, elsewhere in a directory. ``fedtern-state`` in the node's
    configuration names the directory; the default is in the user's home.

    List it first, so that other mods work on arrays as without it:
    ``mods=[compression(), LocalDpMod(...)]``.

    Args:
        initial: Returns the arrays of the initial model, for nodes that have them already, such as
            pretrained weights: ``lambda: ArrayRecord(load_model().state_dict())``. If they have the
            same digest as those of the server, the node does not download the model.

    Returns:
        The mod, for ``ClientApp(mods=[compression()])``.

    """

    def compress(message: Message, context: Context, app: App) -> Message:
        data = find_request(message)
        if data is None:
            is_known = message.metadata.message_type.partition(".")[0] in ("train", "evaluate")
            if is_known and message.content.array_records:
                raise RemoteProtocolError(
                    "This ClientApp uses the mod compression(), but its server sends arrays."
                    " Wrap the strategy in fedtern.transports.flower.Compressed, or remove the mod."
                )
            return app(message, context)
        _remove_request(message)

        def work(client: ClientLike, spec: FederationSpec) -> WorkResult:
            return _call_app(app, client, spec, message, context)

        make_model = None if initial is None else lambda spec: _own_model(initial, spec)
        return Node(message, context, make_model).handle(data, work)

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
    message.content.pop(KEY, None)  # a record of its own, if the strategy sends no configuration


def _own_model(make_arrays: MakeArrays, spec: FederationSpec) -> InitialModel | None:
    """Return the node's own initial model; None, which is logged, if the server has another."""
    found = make_arrays()
    arrays = to_numpy(found) if isinstance(found, ArrayRecord) else found
    try:
        parts = _template(spec).split(arrays)
    except (ValueError, NonFiniteError) as error:
        log(WARNING, "fedtern: this node's initial model does not fit the server's: %s", error)
        return None
    weights = round_initial(parts.weights, spec.layout, spec.initial)
    if digest_of(weights, parts.carried) != spec.weights_digest:
        log(WARNING, "fedtern: this node's initial model has other values than the server's")
        return None
    log(INFO, "fedtern: this node has the initial model already and does not download it")
    return InitialModel(parts.weights, parts.carried)


def _call_app(
    app: App, client: ClientLike, spec: FederationSpec, message: Message, context: Context
) -> WorkResult:
    """Call the app as without compression, and return the change of the weights.

    Raises:
        UnusableResult: The app did not return arrays that fit the model.

    """
    template = _template(spec)
    record = to_record(template, client.weights, client.carried)
    message.content = RecordDict({spec.arrays_key: record, **message.content})
    del record  # the app may free the arrays while it trains
    reply = app(message, context)
    message.content.pop(spec.arrays_key, None)  # as large as the model, and not needed any more
    if not reply.has_content():
        return WorkResult(reply)
    if not message.metadata.message_type.startswith("train"):
        unchanged = _find_unchanged(reply.content, template, client)
        if unchanged:
            _remove_model(reply, unchanged)
        return WorkResult(reply, arrays_key=unchanged)
    key = _find_model(reply.content, spec.arrays_key, template)
    try:
        arrays = to_numpy(reply.content.array_records[key])
        # Compression refuses deltas that are not finite, and names the tensor.
        delta = template.delta(arrays, client.weights)
        carried = template.carried_and_local(arrays).carried
    except (ValueError, NonFiniteError) as error:
        raise UnusableResult(str(error)) from error
    del arrays
    _remove_model(reply, key)
    return WorkResult(reply, delta, carried=carried, arrays_key=key)


def _remove_model(reply: Message, key: str) -> None:
    """Put an empty record in the place of the model, so that the order of the records stays."""
    reply.content = RecordDict(
        {
            KEY if name == key else name: ConfigRecord() if name == key else record
            for name, record in reply.content.items()
        }
    )


def _find_unchanged(content: RecordDict, template: Template, client: ClientLike) -> str:
    """Return the key of a record that is the model of this round; empty if there is none."""
    for key, record in content.array_records.items():
        try:
            arrays = to_numpy(record)
            delta = template.delta(arrays, client.weights)
            carried = template.carried_and_local(arrays).carried
        except (ValueError, NonFiniteError):
            continue
        if not delta.any() and not changed_values(carried, client.carried):
            return key
    return ""


def _find_model(content: RecordDict, arrays_key: str, template: Template) -> str:
    """Return the key of the record with the model in a reply.

    Raises:
        UnusableResult: No record is the model, or several could be.

    """
    records = content.array_records
    if arrays_key in records:
        return arrays_key
    if len(records) == 1:
        return next(iter(records))
    fitting = [key for key, record in records.items() if set(record) == set(template.names)]
    if len(fitting) == 1:
        return fitting[0]
    raise UnusableResult(
        f"expected the model in the ArrayRecord {arrays_key!r} of the train function's reply, got"
        f" {len(records)} ArrayRecords: {', '.join(map(repr, records)) or 'none'}"
    )


def _template(spec: FederationSpec) -> Template:
    if spec.template is None:
        raise UnusableResult("the server did not send the template of its model")
    return spec.template
