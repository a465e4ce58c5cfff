"""Client apps and strategy together in one process: traffic, state, restarts and failures."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED HERE: install the extra flower")

from direct import DirectGrid, DirectSimulation, app, initial, train
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedProx
from flwr.supercore.run import Run

from fedtern import METHODS, DurableServer, LocalProtocolError, Store, fedavg, signsgd, stc
from fedtern.core.errors import StoreError
from fedtern.report import load_run, write_report
from fedtern.runs.status import FINISHED, read_status
from fedtern.transports.flower import Compressed
from fedtern.transports.flower.counters import WireBytes, count_wire
from fedtern.transports.flower.messages import (
    KEY,
    Answer,
    AnswerKind,
    Handshake,
    RoundRequest,
    read_answer,
    read_request,
)
from fedtern.transports.flower.strategy import NoUploads

ANY_NODES = {"min_available_nodes": 1, "min_train_nodes": 1, "min_evaluate_nodes": 1}
METHOD = stc(p_up=1 / 20, p_down=1 / 20)


@pytest.fixture
def flower_log(caplog):
    """Capture the log of Flower, which fedtern writes to."""
    caplog.set_level(logging.INFO, "flwr")
    return caplog


def federate(grid, rounds=3, method=METHOD, **options):
    strategy = options.pop("strategy", None) or FedAvg(**ANY_NODES)
    start = options.pop("start", {})
    arrays = options.pop("arrays", initial())
    return Compressed(strategy, method, **options).start(grid, arrays, rounds, 1, **start)


def flat(arrays):
    return np.concatenate([array.numpy().ravel() for array in arrays.values()])


def by_round(result, name):
    """Return a metric of each round."""
    return [metrics[name] for metrics in result.train_metrics_clientapp.values()]


def final(result, name):
    """Return a metric of the last round."""
    return by_round(result, name)[-1]


@pytest.mark.parametrize("name", METHODS)
def test_nodes_and_server_end_with_the_same_bits_for_every_method(tmp_path, name):
    grid = DirectGrid(tmp_path, [app(), app(), app()])
    result = federate(grid, rounds=4, method=METHODS[name]())
    assert np.abs(flat(result.arrays)).max() > 0
    for node in grid.apps:
        assert np.array_equal(grid.weights(node), flat(result.arrays))


def test_model_is_sent_once_per_node_and_updates_afterwards(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app(), app()])
    result = federate(grid, rounds=5)
    assert final(result, "whole-models-sent") == 3
    assert final(result, "uploads-counted") == 3
    assert final(result, "payload-up-bytes") < 5 * 3 * 60
    assert final(result, "payload-down-bytes") < 3 * (4 * 310 + 25) + 8 * 3 * 60
    assert all(not message.content.array_records for _, message in grid.received)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(30 / 60)  # weighted


def test_dense_broadcast_is_not_counted_as_a_model(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app(), app()])
    result = federate(grid, rounds=4, method=fedavg())
    assert final(result, "whole-models-sent") == 3
    apps = dict(grid.apps)
    grid.apps.pop(102)
    federate(grid, rounds=2, method=fedavg(), store=tmp_path / "fed")
    grid.apps = apps  # node 102 joins late, and later misses two rounds: the model is smaller
    federate(grid, rounds=3, method=fedavg(), store=tmp_path / "fed")
    grid.apps = {node: made for node, made in apps.items() if node != 102}
    federate(grid, rounds=5, method=fedavg(), store=tmp_path / "fed")
    grid.apps = apps
    result = federate(grid, rounds=6, method=fedavg(), store=tmp_path / "fed")
    assert final(result, "whole-models-sent") == 4


def test_training_downloads_nothing_after_an_evaluation(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app()])
    result = federate(grid, rounds=2, initial="exact")
    requests = [
        read_request(message.content["config"][KEY])
        for _, message in grid.received
        if "config" in message.content
    ]
    sizes = [len(request.data) for request in requests if isinstance(request, RoundRequest)]
    assert sizes[:2] > [1240, 1240]  # the model, for the first round
    assert min(sizes[2:4]) > 0  # its broadcast, for the evaluation
    assert sizes[4:6] == [0, 0]  # nothing, for the second round
    assert list(result.evaluate_metrics_clientapp) == [1, 2]


def test_app_gets_the_same_arrays_and_configuration_as_without_compression(tmp_path):
    seen = []

    def look(message, context):
        seen.append((dict(message.content["config"]), list(message.content)))
        return train(message, context)

    grid = DirectGrid(tmp_path, [app(look)])
    prox = FedProx(**ANY_NODES, proximal_mu=0.5)
    federate(grid, 1, strategy=prox, start={"train_config": ConfigRecord({"rate": 0.1})})
    assert seen == [({"rate": 0.1, "proximal-mu": 0.5, "server-round": 1}, ["arrays", "config"])]


def test_federation_continues_after_its_last_finished_round(tmp_path):
    whole = federate(DirectGrid(tmp_path / "a", [app(), app()]), 4, store=tmp_path / "a/fed")
    grid = DirectGrid(tmp_path / "b", [app(), app()])
    federate(grid, 2, store=tmp_path / "b/fed")
    result = federate(grid, 4, store=tmp_path / "b/fed")
    assert list(result.train_metrics_clientapp) == [3, 4]
    assert final(result, "whole-models-sent") == 2
    assert np.array_equal(flat(result.arrays), flat(whole.arrays))
    again = federate(grid, 4, store=tmp_path / "b/fed")  # all rounds are finished
    assert np.array_equal(flat(again.arrays), flat(whole.arrays))


def test_pending_upload_is_sent_again_without_training_after_a_server_crash(tmp_path):
    trained = []

    def count(message, context):
        trained.append(context.node_id)
        return train(message, context)

    class Killed(Compressed):
        def aggregate_train(self, server_round, replies):
            if server_round == 2:
                raise KeyboardInterrupt
            return super().aggregate_train(server_round, replies)

    grid = DirectGrid(tmp_path, [app(count), app(count)])
    plain = FedAvg(min_available_nodes=1, fraction_evaluate=0.0)
    with pytest.raises(KeyboardInterrupt):
        Killed(plain, METHOD, store=tmp_path / "fed").start(grid, initial(), 3, 1)
    assert len(trained) == 4
    result = federate(grid, 3, strategy=plain, store=tmp_path / "fed")
    assert len(trained) == 6  # only the third round was trained for
    assert result.train_metrics_clientapp[2]["loss"] == pytest.approx((1 * 10 + 0.5 * 20) / 30)
    whole = federate(DirectGrid(tmp_path / "b", [app(), app()]), 3, federation="fed")
    assert np.array_equal(flat(result.arrays), flat(whole.arrays))


def test_pending_upload_keeps_lists_of_bytes_in_its_records(tmp_path):
    records = {"raw": b"\x00\xff", "several": [b"a", b"\xff"], "numbers": [1, 2], "texts": ["x"]}
    seen = []

    def more(message, context):
        reply = train(message, context)
        reply.content["more"] = ConfigRecord(records)
        return reply

    class Killed(FedAvg):
        def aggregate_train(self, server_round, replies):
            seen.append([dict(reply.content["more"]) for reply in replies])
            if len(seen) == 1:
                raise KeyboardInterrupt
            return super().aggregate_train(server_round, replies)

    grid = DirectGrid(tmp_path, [app(more)])
    with pytest.raises(KeyboardInterrupt):
        federate(grid, 1, strategy=Killed(**ANY_NODES), store=tmp_path / "fed")
    result = federate(grid, 1, strategy=Killed(**ANY_NODES), store=tmp_path / "fed")
    assert seen == [[records], [records]]  # the second one was sent again, not trained
    assert final(result, "uploads-counted") == 1


def test_node_with_a_new_id_is_recognised_by_its_state(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 2, store=tmp_path / "fed")
    grid.apps[500] = grid.apps.pop(101)  # as after a restart of a node without a key
    grid.directory(101).rename(grid.directory(500))
    result = federate(grid, 3, store=tmp_path / "fed")
    assert final(result, "whole-models-sent") == 2
    assert np.array_equal(grid.weights(500), flat(result.arrays))


@pytest.mark.parametrize("damage", ["cut", "garbage", "gone", "no membership"])
def test_node_with_a_damaged_state_downloads_the_whole_model(tmp_path, flower_log, damage):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 2, store=tmp_path / "fed")
    directory = grid.client_state(101).path
    for path in directory.glob("*.safetensors"):
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:100])
        elif damage == "garbage":
            path.write_bytes(b"\0" * 5000)
        elif damage == "gone":
            path.unlink()
    if damage == "gone":
        for path in directory.glob("*.log"):
            path.unlink()
    if damage == "no membership":
        (directory / "membership.json").write_text("{")
    result = federate(grid, 4, store=tmp_path / "fed")
    assert final(result, "whole-models-sent") == 3
    assert final(result, "uploads-counted") == 2
    assert "empty residual" in flower_log.text
    assert np.array_equal(grid.weights(101), flat(result.arrays))


def test_node_with_a_damaged_newest_snapshot_does_not_use_an_older_one(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 3, store=tmp_path / "fed")
    newest = max(grid.client_state(101).path.glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-7])
    result = federate(grid, 4, store=tmp_path / "fed", strategy=FedAvg(fraction_evaluate=0.0))
    assert final(result, "whole-models-sent") == 3
    assert "requesting the whole model and continuing with an empty residual" in flower_log.text


def test_second_upload_to_the_same_round_is_refused_and_logged(tmp_path, flower_log, monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    def train_differently(message, context):
        reply = train(message, context)
        arrays = {n: Array(-2 * a.numpy()) for n, a in reply.content["arrays"].items()}
        reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    grid = DirectGrid(tmp_path, [app(), app()])
    plain = FedAvg(min_available_nodes=1, fraction_evaluate=0.0)
    with monkeypatch.context() as killed:
        killed.setattr(DurableServer, "finish_round", interrupt)  # after all uploads
        with pytest.raises(KeyboardInterrupt):
            federate(grid, 2, strategy=plain, store=tmp_path / "fed")
    directory = grid.client_state(101).path
    for path in [*directory.glob("*.safetensors"), *directory.glob("*.log")]:
        path.unlink()
    grid.apps[101] = app(train_differently)
    result = federate(grid, 1, strategy=plain, store=tmp_path / "fed")
    assert "node 101 (client 1): client 1: another upload of round 0" in flower_log.text
    assert final(result, "nodes-dropped") == 1
    assert final(result, "uploads-counted") == 2  # the first upload of each client


def broken(change):
    """Return a train function that changes its arrays after training."""

    def spoil(message, context):
        reply = train(message, context)
        arrays = {name: array.numpy().copy() for name, array in reply.content["arrays"].items()}
        arrays = change(arrays)
        reply.content["arrays"] = ArrayRecord({n: Array(a) for n, a in arrays.items()})
        return reply

    return spoil


def raising(message, context):
    raise RuntimeError("out of memory")


def without_arrays(message, context):
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def without_examples(message, context):
    reply = train(message, context)
    reply.content["metrics"] = MetricRecord({"loss": 1.0})
    return reply


def claiming(examples):
    def claim(message, context):
        reply = train(message, context)
        reply.content["metrics"] = MetricRecord({"num-examples": examples, "loss": 1.0})
        return reply

    return claim


FAULTS = {
    "infinitely many examples": (claiming(float("inf")), "one positive finite number, got inf"),
    "NaN": (broken(lambda a: a | {"bias": a["bias"] * np.nan}), "value nan at bias[0]"),
    "shape": (broken(lambda a: a | {"bias": a["bias"][1:]}), "shape (9,), expected (10,)"),
    "names": (
        broken(lambda a: {"weight": a["weight"], "b": a["bias"]}),
        "tensor 'bias' (float32, shape (10,)) is missing (1 of 2 tensors are)",
    ),
    "integers": (
        broken(lambda a: a | {"bias": a["bias"].astype(int)}),
        "tensor 'bias' has dtype int64, expected float32",
    ),
    "error": (raising, "out of memory"),
    "no arrays": (without_arrays, "got 0 ArrayRecords: none"),
    "no examples": (without_examples, "no metric 'num-examples', by which"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_round_continues_without_a_node_with_an_unusable_result(tmp_path, flower_log, fault):
    spoil, reason = FAULTS[fault]
    grid = DirectGrid(tmp_path, [app(), app(spoil), app()])
    result = federate(grid, 3, strategy=FedAvg(fraction_evaluate=0.0))
    assert by_round(result, "uploads-counted") == [2, 2, 2]
    assert final(result, "nodes-dropped") == 1
    assert final(result, "whole-models-sent") == 3
    assert "continuing without node 101 (client 1)" in flower_log.text
    assert reason in flower_log.text
    grid.apps[101] = app()
    repaired = federate(grid, 3, federation="run-7b")
    assert final(repaired, "uploads-counted") == 3


def replaced_by(data):
    """Return a function that makes the content of a reply with these bytes as the answer."""
    return lambda reply: RecordDict(
        {KEY: ConfigRecord({KEY: data}), "metrics": MetricRecord({"num-examples": 1})}
    )


def with_a_flipped_bit(reply):
    data = bytearray(reply.content[KEY][KEY])
    data[-1] ^= 1
    return replaced_by(bytes(data))(reply)


INVALID_REPLIES = {
    "bytes": (replaced_by(b"garbage"), "not a message of fedtern"),
    "nothing": (lambda reply: RecordDict(), "its reply has no upload"),
    "empty": (replaced_by(b""), "ends 1 bytes early"),
    "flipped": (with_a_flipped_bit, "checksum does not match"),
    "another client": (
        replaced_by(Answer(AnswerKind.UPLOAD, 0, 1, bytes(3), b"x").to_bytes()),
        "unexpected answer of kind 17 and client 0",
    ),
    "not UTF-8": (
        replaced_by(bytes([0xFD, 2, AnswerKind.NOT_READY, 2, 1, 0, 0, 0, 0xFF])),
        "not UTF-8",
    ),
    "kind": (replaced_by(bytes([0xFD, 2, 99])), "kind 99"),
    "silence": (None, "no answer within 1 seconds"),
}


@pytest.mark.parametrize("invalid", INVALID_REPLIES)
def test_round_continues_without_a_node_with_an_invalid_reply(tmp_path, flower_log, invalid):
    make, reason = INVALID_REPLIES[invalid]
    grid = DirectGrid(tmp_path, [app(), app(), app()])

    def tamper(node, reply):
        last = grid.received[-1][1].content
        if node != 101 or "config" not in last or last["config"]["server-round"] != 2:
            return reply
        if make is None:
            return None
        reply.content = make(reply)
        return reply

    grid.tamper = tamper
    result = federate(grid, 4, strategy=FedAvg(fraction_evaluate=0.0))
    assert by_round(result, "uploads-counted") == [3, 2, 3, 3]
    assert reason in flower_log.text
    assert final(result, "whole-models-sent") == 3


def test_federation_continues_without_a_silent_node(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), None])
    result = federate(grid, 2)
    assert final(result, "uploads-counted") == 1
    assert "no answer" in flower_log.text


def test_round_without_an_answer_is_finished_but_the_run_stops_after_three(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [None])
    result = federate(grid, 2, arrays=initial(0.5))
    assert by_round(result, "uploads-counted") == [0, 0]
    assert "Round 2 has counted no upload: node 100: no answer within 1 seconds" in flower_log.text
    with pytest.raises(NoUploads, match=r"^Round 3 has counted no upload: node 100: no answer"):
        federate(grid, 5, federation="other")


def test_log_names_the_mod_for_a_client_app_without_it(tmp_path, flower_log):
    result = federate(DirectGrid(tmp_path, [app(), app(compressed=False)]), 1)
    assert final(result, "uploads-counted") == 1
    lines = [record.getMessage() for record in flower_log.records]
    line = next(line for line in lines if "without node 101" in line)
    assert "KeyError'>: 'arrays'" in line
    assert "does its ClientApp have mods=[fedtern.transports.flower.compression()]?" in line


def test_log_does_not_name_the_mod_for_an_unavailable_node(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    unavailable = Error(5, "Message Unavailable")
    grid.tamper = lambda node, reply: (
        Message(unavailable, reply_to=grid.received[-1][1]) if node == 101 else reply
    )
    assert final(federate(grid, 1), "uploads-counted") == 1
    assert "continuing without node 101: Message Unavailable" in flower_log.text
    assert "mods=" not in flower_log.text


def test_error_names_the_wrapper_for_a_strategy_without_it(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app()])
    (message, *_) = FedAvg().configure_train(1, initial(), ConfigRecord(), grid)
    (reply,) = grid.send_and_receive([message])
    assert "Wrap the strategy in fedtern.transports.flower.Compressed" in reply.error.reason


def test_node_refuses_another_method_or_model_under_the_same_name(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, federation="fed")
    with pytest.raises(
        NoUploads, match=r"^Round 1 .* node 100 .* is already in a federation 'fed'"
    ):
        federate(grid, 2, method=fedavg(), federation="fed")
    errors = [r.getMessage() for r in flower_log.records if r.levelname == "ERROR"]
    of_node = [line for line in errors if "this node cannot work with the server" in line]
    of_server = [line for line in errors if "node 100 is excluded from this run" in line]
    assert of_node
    assert of_server
    for line in (*of_node, *of_server):
        assert '{"name":"stc"' in line
        assert '{"name":"fedavg"' in line
    other = ArrayRecord({"w": Array(np.zeros(5, np.float32))})
    with pytest.raises(NoUploads, match=r"tensor 'weight' is trained \(30, 10\) here and missing"):
        federate(grid, 1, federation="fed", arrays=other)
    layouts = "310 values (weight (30, 10), bias (10,)) here and 5 values (w (5,)) there"
    assert layouts in flower_log.text


def test_federation_may_change_the_key_of_its_arrays(tmp_path, flower_log):
    def look(message, context):
        (name,) = message.content.array_records
        content = RecordDict({**message.content, "arrays": message.content[name]})
        message.content = content
        seen.append(name)
        return train(message, context)

    seen = []
    grid = DirectGrid(tmp_path, [app(look)])
    for rounds, key in enumerate(["arrays", "model", "model"], 1):
        plain = FedAvg(**{**ANY_NODES, "fraction_evaluate": 0.0}, arrayrecord_key=key)
        federate(grid, rounds, strategy=plain, store=tmp_path / "fed")
    assert seen == ["arrays", "model", "model"]


def test_node_refuses_another_protocol_and_names_both_versions(tmp_path, flower_log, monkeypatch):
    handshake = Handshake("9.9.9", {}).to_bytes()
    other = bytes([handshake[0], 77]) + handshake[2:]
    message = Message(RecordDict({KEY: ConfigRecord({KEY: other})}), 100, "train")
    (reply,) = DirectGrid(tmp_path, [app()]).send_and_receive([message])
    answer = read_answer(reply.content[KEY][KEY])
    assert answer.kind is AnswerKind.REFUSED
    for text in (answer.reason, flower_log.text):
        assert "fedtern 9.9.9 and speaks protocol 77" in text
        assert "this side speaks 2" in text


def test_node_refuses_an_unknown_method(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    send_and_receive = grid.send_and_receive

    def forge(messages, *, timeout=None):
        for message in messages:
            for record in message.content.config_records.values():
                record[KEY] = record[KEY].replace(b'"name": "stc"', b'"name": "my_stc"')
        return send_and_receive(messages, timeout=timeout)

    grid.send_and_receive = forge
    with pytest.raises(NoUploads, match=r"Unknown method 'my_stc'\. Did you mean .* 1 more nodes"):
        federate(grid, 1)
    assert "Unknown method 'my_stc'. Did you mean" in flower_log.text


def test_server_that_starts_again_sends_the_whole_model_to_its_clients(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 3, federation="fed")
    result = federate(grid, 2, federation="fed")  # without a store it starts again
    assert final(result, "whole-models-sent") == 2
    assert final(result, "uploads-counted") == 2
    assert np.array_equal(grid.weights(100), flat(result.arrays))


def test_node_of_another_history_downloads_the_whole_model(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, federation="fed", arrays=initial(1.0))
    federate(DirectGrid(tmp_path / "b", [app()]), 3, store=tmp_path / "fed")
    result = federate(grid, 6, store=tmp_path / "fed")
    assert "another federation or to other initial weights" in flower_log.text
    assert by_round(result, "uploads-counted") == [0, 2, 2]


def test_second_node_with_the_same_state_directory_is_dropped_and_logged(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, store=tmp_path / "fed")
    grid.apps[500] = app()
    grid.directory(500).symlink_to(grid.directory(101))
    result = federate(grid, 2, store=tmp_path / "fed")
    assert "share one state directory" in flower_log.text
    assert final(result, "uploads-counted") == 2


def test_nodes_that_share_a_directory_from_the_start_keep_their_state(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    grid.directory(100).mkdir()
    grid.directory(101).symlink_to(grid.directory(100))
    result = federate(grid, 4)
    assert by_round(result, "uploads-counted") == [1, 1, 1, 1]
    assert final(result, "whole-models-sent") == 1  # neither has deleted the other's state
    assert "(client 0): two nodes must not share one state directory" in flower_log.text
    assert "has lost its state" not in flower_log.text
    grid.directory(101).unlink()  # as the log line recommends
    repaired = federate(grid, 2, federation="other")
    assert final(repaired, "uploads-counted") == 2


def ask(grid, node, request):
    """Send a training request to a node and return its answer."""
    message = Message(RecordDict({KEY: ConfigRecord({KEY: request.to_bytes()})}), node, "train")
    (reply,) = grid.send_and_receive([message])
    return read_answer(reply.content[KEY][KEY])


def test_request_for_another_client_does_not_change_the_state(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app()])
    result = federate(grid, 2)
    answer = ask(grid, 100, RoundRequest("run-7", False, True, 1, b""))
    assert answer.kind is AnswerKind.NOT_READY
    assert "client 0, but the request is for client 1: two nodes must not" in answer.reason
    assert answer.reason in flower_log.text
    assert np.array_equal(grid.weights(100), flat(result.arrays))


def test_request_to_a_locked_state_does_not_change_it(tmp_path):
    grid = DirectGrid(tmp_path, [app()])
    result = federate(grid, 2)
    with Store(grid.client_state(100).path):  # as by a request that is still running
        answer = ask(grid, 100, RoundRequest("run-7", False, True, 0, b""))
        assert "locked by another process" in answer.reason
    assert np.array_equal(grid.weights(100), flat(result.arrays))


def numbers(grid, *nodes):
    return [grid.client_number(node) for node in nodes]


def test_node_gets_a_new_number_if_another_client_has_its_number(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 3, federation="fed")
    old = dict(grid.apps)

    def train_and_let_the_others_return(message, context):
        grid.apps |= old
        return train(message, context)

    grid.apps = {50: app(train_and_let_the_others_return)}
    result = federate(grid, 4, federation="fed")  # without a store, the server starts again
    assert by_round(result, "uploads-counted") == [1, 3, 3, 3]
    assert numbers(grid, 50, 100, 101) == [0, 2, 1]
    assert "node 100 reports that it is client 0, which is now node 50" in flower_log.text
    assert "share one state directory" not in flower_log.text
    for node in grid.apps:
        assert np.array_equal(grid.weights(node), flat(result.arrays))
    again = federate(grid, 6, federation="fed")
    assert numbers(grid, 50, 100, 101) == [0, 2, 1]
    assert final(again, "uploads-counted") == 3


def test_two_nodes_with_the_same_number_get_different_ones(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app(), app()])
    all_apps = dict(grid.apps)
    for nodes in ([100], [101, 102]):  # a federation that has started twice
        grid.apps = {node: all_apps[node] for node in nodes}
        federate(grid, 1, federation="fed")
    grid.apps = all_apps
    assert numbers(grid, 100, 101, 102) == [0, 0, 1]
    assert final(federate(grid, 3, federation="fed"), "uploads-counted") == 3
    assert numbers(grid, 100, 101, 102) == [0, 2, 1]


def test_new_number_is_sent_again_if_its_request_is_lost(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app()])
    all_apps = dict(grid.apps)
    for node, made in all_apps.items():
        grid.apps = {node: made}
        federate(grid, 1, federation="fed")
    grid.apps = all_apps
    received = []

    def lose_one_request(node, message, deliver=grid.deliver):
        received.append(node)
        is_lost = node == 101 and received.count(101) == 2  # the first after the handshake
        return None if is_lost else deliver(node, message)

    grid.deliver = lose_one_request
    result = federate(grid, 3, federation="fed", strategy=FedAvg(fraction_evaluate=0.0))
    assert by_round(result, "uploads-counted") == [1, 2, 2]
    assert numbers(grid, 100, 101) == [0, 1]


def test_node_with_a_locked_state_misses_only_that_round(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, store=tmp_path / "fed")
    with Store(grid.client_state(101).path):  # as by a request that is still running
        result = federate(grid, 2, store=tmp_path / "fed")
        assert final(result, "uploads-counted") == 1
    assert "is locked by another process" in flower_log.text
    assert final(federate(grid, 3, store=tmp_path / "fed"), "uploads-counted") == 2


@pytest.fixture
def simulation(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtern.transports.flower.strategy.is_simulated", lambda _grid: True)
    return DirectSimulation(tmp_path, [app(), app()])


def test_simulation_keeps_states_in_the_context(tmp_path, simulation):
    result = federate(simulation, 3)
    assert final(result, "uploads-counted") == 2
    assert final(result, "whole-models-sent") == 2
    assert not list(tmp_path.iterdir())


def test_simulated_node_with_a_damaged_context_downloads_the_whole_model(simulation, flower_log):
    federate(simulation, 2, federation="fed")
    for node in simulation.apps:
        simulation.context_state(node)[KEY]["state"] = b"damaged"
    result = federate(simulation, 3, federation="fed")
    assert "the state in the context is damaged" in flower_log.text
    assert final(result, "uploads-counted") == 2


def test_node_that_loses_its_membership_takes_part_again_in_the_next_round(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])

    def tamper(node, reply):
        if node == 101 and len([n for n, _ in grid.received if n == 101]) == 1:
            (grid.client_state(101).path / "membership.json").unlink()
        return reply

    grid.tamper = tamper
    result = federate(grid, 2, strategy=FedAvg(fraction_evaluate=0.0))
    assert by_round(result, "uploads-counted") == [1, 2]
    assert "this node has no membership in federation 'run-7'" in flower_log.text
    assert "has lost its state" in flower_log.text


@pytest.mark.parametrize("text", [None, "{", "[]", '{"round": 0}', "\ud800"])
def test_pending_upload_without_metrics_is_not_sent(tmp_path, flower_log, text):
    class Killed(Compressed):
        def aggregate_train(self, server_round, replies):
            raise KeyboardInterrupt

    grid = DirectGrid(tmp_path, [app(), app()])
    plain = FedAvg(min_available_nodes=1, fraction_evaluate=0.0)
    with pytest.raises(KeyboardInterrupt):
        Killed(plain, METHOD, store=tmp_path / "fed").start(grid, initial(), 2, 1)
    reply = grid.client_state(101).path / "reply.json"
    if text is None:
        reply.unlink()
    else:
        reply.write_bytes(text.encode(errors="surrogatepass"))
    result = federate(grid, 2, strategy=plain, store=tmp_path / "fed")
    assert by_round(result, "uploads-counted") == [1, 2]
    assert "the metrics of this node's pending upload are lost" in flower_log.text


@pytest.mark.parametrize("value", [1.0, [1.0, 2.0]])
def test_upload_with_other_metrics_counts_but_its_metrics_do_not(tmp_path, flower_log, value):
    def other(message, context):
        reply = train(message, context)
        reply.content["metrics"]["extra" if value == 1.0 else "loss"] = value
        return reply

    result = federate(DirectGrid(tmp_path, [app(), app(), app(other)]), 1)
    assert final(result, "uploads-counted") == 3
    assert "extra" not in result.train_metrics_clientapp[1]
    assert "report other metrics" in flower_log.text


@pytest.mark.parametrize("examples", [0, -1, float("nan"), float("inf"), [1, 2]])
def test_evaluation_without_a_positive_finite_weight_is_left_out(tmp_path, flower_log, examples):
    def odd(message, context):
        metrics = MetricRecord({"num-examples": examples, "mean": 1e9})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    grid = DirectGrid(tmp_path, [app(), app(), app(evaluate=odd)])
    result = federate(grid, 1)
    assert result.evaluate_metrics_clientapp[1]["mean"] < 1e6
    assert "1 nodes report other metrics" in flower_log.text


def test_node_with_an_absurd_client_number_is_excluded(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    absurd = Answer(AnswerKind.STATUS, (1 << 64) - 2).to_bytes()
    grid.tamper = lambda node, reply: (
        Message(RecordDict({KEY: ConfigRecord({KEY: absurd})}), reply_to=grid.received[-1][1])
        if node == 101
        else reply
    )
    result = federate(grid, 2, store=tmp_path / "fed")
    assert final(result, "uploads-counted") == 1
    assert by_round(result, "nodes-dropped") == [1, 1]
    assert "it reports client number 18446744073709551614" in flower_log.text
    grid.tamper = lambda _node, reply: reply
    grid.apps[102] = app()
    assert final(federate(grid, 3, store=tmp_path / "fed"), "uploads-counted") == 3


def test_temporary_read_error_does_not_reset_a_client(tmp_path, monkeypatch, flower_log):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 2, store=tmp_path / "fed")
    read = Path.read_text
    failing = [True]

    def fail(path, *args, **options):
        if path == grid.client_state(101).path / "membership.json" and failing:
            failing.clear()
            raise OSError(24, "Too many open files")
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", fail)
    result = federate(grid, 4, store=tmp_path / "fed")
    assert not failing
    assert final(result, "whole-models-sent") == 2
    assert final(result, "uploads-counted") == 2


def test_the_store_has_the_status_of_the_federation(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 3, store=tmp_path / "fed")
    found = read_status(tmp_path / "fed")
    assert (found.state, found.status.round) == (FINISHED, 3)
    last = load_run(tmp_path / "fed").last
    assert (found.status.up_bytes, found.status.down_bytes) == (
        last["up_bytes"],
        last["down_bytes"],
    )
    clients = found.status.clients
    assert (clients.total, clients.present, clients.cohort) == (2, 2, 2)
    assert load_run(tmp_path / "fed").config["machine"]["flower"]


def test_federation_continues_with_damaged_metrics(tmp_path, flower_log):
    grid = DirectGrid(tmp_path, [app()])
    federate(grid, 2, store=tmp_path / "fed")
    metrics = tmp_path / "fed" / "metrics.jsonl"
    metrics.write_bytes(bytes(20) + b"\n" + metrics.read_bytes())
    federate(grid, 3, store=tmp_path / "fed")
    assert [e["round"] for e in load_run(tmp_path / "fed").evaluations] == [1, 2, 3]
    assert "dropped a line that cannot be read" in flower_log.text


def test_unreachable_superlink_gives_no_wire_bytes():
    grid = SimpleNamespace(_addr="127.0.0.1:1", _insecure=True, _cert=None, run=Run.create_empty(1))
    assert count_wire(grid) is None


def test_wire_bytes_are_summed_over_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedtern.transports.flower.strategy.count_wire", lambda _grid: WireBytes(1000, 2000)
    )
    grid = DirectGrid(tmp_path, [app()])
    first = federate(grid, 1, store=tmp_path / "fed")
    second = federate(grid, 2, store=tmp_path / "fed")
    assert (final(first, "wire-up-bytes"), final(first, "wire-down-bytes")) == (1000, 2000)
    assert (final(second, "wire-up-bytes"), final(second, "wire-down-bytes")) == (2000, 4000)
    assert load_run(tmp_path / "fed").last["wire_up_bytes"] == 2000
    page = write_report([tmp_path / "fed"], tmp_path / "report.html").read_text()
    assert "On the wire:" in page


def test_disk_error_of_the_server_is_raised(tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise StoreError("no space left")

    monkeypatch.setattr(DurableServer, "receive", fail)
    with pytest.raises(StoreError, match="no space left"):
        federate(DirectGrid(tmp_path, [app()]), 1, store=tmp_path / "fed")


def test_new_client_does_not_get_the_number_of_an_old_one(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, federation="fed")
    grid.apps = {50: app(), **grid.apps}
    result = federate(grid, 1, federation="fed")  # without a store, the server starts again
    assert final(result, "uploads-counted") == 3
    assert numbers(grid, 50, 100, 101) == [2, 0, 1]


def test_additional_arrays_of_a_strategy_reach_the_app(tmp_path):
    class Controlled(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                message.content["control"] = initial(0.25)
                yield message

    seen = []

    def look(message, context):
        seen.append(message.content["control"]["bias"].numpy().mean())
        return train(message, context)

    federate(DirectGrid(tmp_path, [app(look)]), 1, strategy=Controlled(**ANY_NODES))
    assert seen == [0.25]


def test_configure_train_outside_of_start_raises(tmp_path):
    with pytest.raises(LocalProtocolError, match=r"only inside its start\(\)"):
        Compressed(FedAvg()).configure_train(1, initial(), ConfigRecord(), DirectGrid(tmp_path, []))


def test_strategy_may_override_aggregate_evaluate(tmp_path):
    seen = []

    class Watching(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            found = super().aggregate_evaluate(server_round, replies)
            seen.append((server_round, [r.content["metrics"]["num-examples"] for r in replies]))
            return MetricRecord({"mine": 2 * found["mean"]}) if found else None

    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, strategy=Watching(**ANY_NODES), store=tmp_path / "fed")
    result = federate(grid, 2, strategy=Watching(**ANY_NODES), store=tmp_path / "fed")
    assert seen == [(1, [1, 1]), (2, [1, 1])]
    mean = flat(result.arrays)[-10:].mean()
    assert result.evaluate_metrics_clientapp[2]["mine"] == pytest.approx(2 * mean)


def test_evaluations_without_a_weight_are_left_out_and_logged(tmp_path, flower_log):
    def unweighted(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"mean": 1.0})}), reply_to=message)

    result = federate(DirectGrid(tmp_path, [app(evaluate=unweighted)]), 1)
    assert "mean" not in result.evaluate_metrics_clientapp[1]
    expected = "1 nodes report other metrics than ['mean'] in 'metrics', or no 'num-examples'"
    assert expected in flower_log.text


def test_evaluation_in_another_record_is_left_out_and_logged(tmp_path, flower_log):
    def in_another_record(message, context):
        found = MetricRecord({"mean": 1.0, "num-examples": 1})
        return Message(RecordDict({"other": found}), reply_to=message)

    grid = DirectGrid(tmp_path, [app(), app(), app(evaluate=in_another_record)])
    result = federate(grid, 2)
    assert result.evaluate_metrics_clientapp[2]["mean"] != 1.0
    expected = "1 nodes report other metrics than ['mean', 'num-examples'] in 'metrics'"
    assert expected in flower_log.text


def test_object_that_is_not_a_strategy_is_refused():
    with pytest.raises(ValueError, match="cannot wrap str"):
        Compressed("FedAvg")


def test_model_without_anything_to_train_is_refused(tmp_path):
    arrays = ArrayRecord({"bn.num_batches_tracked": Array(np.zeros((), np.int64))})
    with pytest.raises(ValueError, match=r"no floating-point tensor .* bn.num_batches_tracked"):
        Compressed(FedAvg()).start(DirectGrid(tmp_path, [app()]), arrays)
    with pytest.raises(ValueError, match="contain no array"):
        Compressed(FedAvg()).start(DirectGrid(tmp_path, [app()]), ArrayRecord())


def test_store_of_another_federation_is_refused(tmp_path):
    federate(DirectGrid(tmp_path, [app()]), 1, store=tmp_path / "fed")
    with pytest.raises(StoreError, match="belongs to another state"):
        federate(DirectGrid(tmp_path, [app()]), 1, store=tmp_path / "fed", method=signsgd())


def test_store_is_a_run_directory_for_the_report(tmp_path):
    def central(server_round, arrays):
        return MetricRecord({"centralized_accuracy": 0.1 * server_round, "loss": 1.0})

    grid = DirectGrid(tmp_path, [app(), app()])
    for rounds in (2, 3):
        federate(grid, rounds, store=tmp_path / "fed", start={"evaluate_fn": central})
    run = load_run(tmp_path / "fed")
    assert [e["round"] for e in run.evaluations] == [1, 2, 3]
    assert [e["accuracy"] for e in run.evaluations] == pytest.approx([0.1, 0.2, 0.3])
    assert run.method == {"name": "stc", **{k: v for k, v in run.method.items() if k != "name"}}
    assert run.method["p_up"] == 1 / 20
    totals = json.loads((tmp_path / "fed/ledger.json").read_text())
    assert run.last["up_bytes"] == totals["up"]["total"] > 0
    assert run.last["down_bytes"] == totals["down"]["total"]
    page = write_report([tmp_path / "fed"], tmp_path / "report.html").read_text()
    assert "STC p=1/20" in page
    assert "reached 30.0" in page
    assert "On the wire:" not in page


def test_dense_bytes_in_the_metrics_contain_carried_tensors(tmp_path):
    arrays = ArrayRecord({**initial(), "running_mean": Array(np.zeros(7, np.float32))})
    federate(DirectGrid(tmp_path, [app()]), 2, store=tmp_path / "fed", arrays=arrays)
    assert load_run(tmp_path / "fed").last["dense_bytes"] == 2 * 4 * (300 + 10 + 7)


def test_uploads_that_a_round_does_not_count_are_in_the_payload(tmp_path):
    def weightless(message, context):
        reply = train(message, context)
        reply.content["metrics"] = MetricRecord({"num-examples": 0, "loss": 1.0})
        return reply

    sent = []

    def note(_node, reply):
        if KEY in reply.content:
            answer = read_answer(reply.content[KEY][KEY])
            sent.extend([len(answer.data)] if answer.kind is AnswerKind.UPLOAD else [])
        return reply

    grid = DirectGrid(tmp_path, [app(), app(weightless)])
    grid.tamper = note
    result = federate(grid, 2)
    assert by_round(result, "uploads-counted") == [1, 1]
    assert len(sent) == 4
    assert final(result, "payload-up-bytes") == sum(sent)


def test_damaged_counters_are_reported(tmp_path):
    federate(DirectGrid(tmp_path, [app()]), 1, store=tmp_path / "fed")
    (tmp_path / "fed/ledger.json").write_text("[]")
    with pytest.raises(StoreError, match=r"ledger\.json is damaged"):
        federate(DirectGrid(tmp_path, [app()]), 1, store=tmp_path / "fed")


def test_federation_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a name of at most 64 bytes"):
        federate(DirectGrid(tmp_path, [app()]), 1, federation="x" * 65)


def test_federation_name_is_escaped_in_the_name_of_the_directory(tmp_path):
    grid = DirectGrid(tmp_path, [app()])
    federate(grid, 1, federation="../../etc/ü x")
    assert grid.client_state(100).path.name == "federation-..%2F..%2Fetc%2F%C3%BC%20x"


def test_default_state_directory_is_in_the_users_home(tmp_path, monkeypatch):
    grid = DirectGrid(tmp_path, [app()])
    monkeypatch.setattr(grid, "directory", lambda node: "")
    federate(grid, 1)
    assert (tmp_path / "state-home/fedtern/flower/100/federation-run-7/membership.json").exists()
