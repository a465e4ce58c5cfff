"""The two apps together, in one process: what is sent, what is kept, and what goes wrong."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED HERE: pip install 'fedtern[flower]'")

from direct import DirectGrid, DirectSimulation, app, initial, train
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, FedProx
from flwr.supercore.run import Run

from fedtern import METHODS, DurableServer, LocalProtocolError, Store, fedavg, signsgd, stc
from fedtern.core.errors import StoreError
from fedtern.report import load_run, write_report
from fedtern.transports.flower import Compressed, compression, messages
from fedtern.transports.flower.counters import WireBytes, count_wire
from fedtern.transports.flower.messages import KEY

ANY = {"min_available_nodes": 1, "min_train_nodes": 1, "min_evaluate_nodes": 1}
METHOD = stc(p_up=1 / 20, p_down=1 / 20)


@pytest.fixture
def said(caplog):
    """What Flower's logger was told."""
    caplog.set_level(logging.INFO, "flwr")
    return caplog


def federate(grid, rounds=3, method=METHOD, **options):
    strategy = options.pop("strategy", None) or FedAvg(**ANY)
    start, arrays = options.pop("start", {}), options.pop("arrays", initial())
    return Compressed(strategy, method, **options).start(grid, arrays, rounds, 1, **start)


def flat(arrays):
    return np.concatenate([array.numpy().ravel() for array in arrays.values()])


def final(result, name):
    return [metrics[name] for metrics in result.train_metrics_clientapp.values()][-1]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_ends_with_the_same_bits_everywhere(tmp_path, name):
    grid = DirectGrid(tmp_path, [app(), app(), app()])
    result = federate(grid, rounds=4, method=METHODS[name]())
    assert np.abs(flat(result.arrays)).max() > 0
    for node in grid.apps:
        assert np.array_equal(grid.weights(node), flat(result.arrays))


def test_a_model_is_sent_once_and_then_only_what_changed(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app(), app()])
    result = federate(grid, rounds=5)
    assert final(result, "whole-models-sent") == 3
    assert final(result, "uploads-counted") == 3
    assert final(result, "payload-up-bytes") < 5 * 3 * 60
    assert final(result, "payload-down-bytes") < 3 * (4 * 310 + 25) + 8 * 3 * 60
    assert all(not message.content.array_records for _, message in grid.received)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(30 / 60)  # weighted


def test_a_dense_broadcast_is_not_a_model(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app(), app()])
    result = federate(grid, rounds=4, method=fedavg())
    assert final(result, "whole-models-sent") == 3
    apps = dict(grid.apps)
    grid.apps.pop(102)
    federate(grid, rounds=2, method=fedavg(), store=tmp_path / "fed")
    grid.apps = apps  # it joins late, and later misses two rounds, for which the model is shorter
    federate(grid, rounds=3, method=fedavg(), store=tmp_path / "fed")
    grid.apps = {node: made for node, made in apps.items() if node != 102}
    federate(grid, rounds=5, method=fedavg(), store=tmp_path / "fed")
    grid.apps = apps
    result = federate(grid, rounds=6, method=fedavg(), store=tmp_path / "fed")
    assert final(result, "whole-models-sent") == 4


def test_evaluation_brings_the_replica_up_to_date_and_sends_nothing_twice(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app()])
    result = federate(grid, rounds=2)
    turns = [
        messages.read_request(message.content["config"][KEY])
        for _, message in grid.received
        if "config" in message.content
    ]
    sizes = [len(turn.data) for turn in turns]
    assert sizes[:2] > [1240, 1240]  # the models
    assert min(sizes[2:4]) > 0  # with the evaluation, the broadcast
    assert sizes[4:6] == [0, 0]  # which training needs no more
    assert list(result.evaluate_metrics_clientapp) == [1, 2]


def test_apps_are_given_what_they_would_get_without_compression(tmp_path):
    seen = []

    def look(message, context):
        seen.append((dict(message.content["config"]), list(message.content)))
        return train(message, context)

    grid = DirectGrid(tmp_path, [app(look)])
    prox = FedProx(**ANY, proximal_mu=0.5)
    federate(grid, 1, strategy=prox, start={"train_config": ConfigRecord({"rate": 0.1})})
    assert seen == [({"rate": 0.1, "proximal-mu": 0.5, "server-round": 1}, ["arrays", "config"])]


def test_a_federation_goes_on_where_it_stopped(tmp_path):
    whole = federate(DirectGrid(tmp_path / "a", [app(), app()]), 4, store=tmp_path / "a/fed")
    grid = DirectGrid(tmp_path / "b", [app(), app()])
    federate(grid, 2, store=tmp_path / "b/fed")
    result = federate(grid, 4, store=tmp_path / "b/fed")
    assert list(result.train_metrics_clientapp) == [3, 4]
    assert final(result, "whole-models-sent") == 2
    assert np.array_equal(flat(result.arrays), flat(whole.arrays))
    again = federate(grid, 4, store=tmp_path / "b/fed")  # nothing is left to do
    assert np.array_equal(flat(again.arrays), flat(whole.arrays))


def test_an_upload_that_a_dead_server_never_counted_is_sent_again_not_trained_again(tmp_path):
    turns = []

    def count(message, context):
        turns.append(context.node_id)
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
    assert len(turns) == 4
    result = federate(grid, 3, strategy=plain, store=tmp_path / "fed")
    assert len(turns) == 6  # of the third round only
    assert result.train_metrics_clientapp[2]["loss"] == pytest.approx((1 * 10 + 0.5 * 20) / 30)
    whole = federate(DirectGrid(tmp_path / "b", [app(), app()]), 3, federation="fed")
    assert np.array_equal(flat(result.arrays), flat(whole.arrays))


def test_a_node_under_a_new_name_is_known_by_its_state(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 2, store=tmp_path / "fed")
    grid.apps[500] = grid.apps.pop(101)  # as after a restart without a key
    grid.directory(101).rename(grid.directory(500))
    result = federate(grid, 3, store=tmp_path / "fed")
    assert final(result, "whole-models-sent") == 2
    assert np.array_equal(grid.weights(500), flat(result.arrays))


@pytest.mark.parametrize("damage", ["cut", "garbage", "gone", "no membership"])
def test_a_damaged_state_is_replaced_by_the_whole_model(tmp_path, said, damage):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 2, store=tmp_path / "fed")
    home = grid.home(101).path
    for path in home.glob("*.safetensors"):
        if damage == "cut":
            path.write_bytes(path.read_bytes()[:100])
        elif damage == "garbage":
            path.write_bytes(b"\0" * 5000)
        elif damage == "gone":
            path.unlink()
    if damage == "gone":
        [path.unlink() for path in home.glob("*.log")]
    if damage == "no membership":
        (home / "membership.json").write_text("{")
    result = federate(grid, 4, store=tmp_path / "fed")
    assert final(result, "whole-models-sent") == 3
    assert final(result, "uploads-counted") == 2
    assert "empty residual" in said.text
    assert np.array_equal(grid.weights(101), flat(result.arrays))


def test_a_damaged_newest_snapshot_is_not_replaced_by_an_older_one(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 3, store=tmp_path / "fed")
    newest = max(grid.home(101).path.glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-7])
    result = federate(grid, 4, store=tmp_path / "fed", strategy=FedAvg(fraction_evaluate=0.0))
    assert final(result, "whole-models-sent") == 3
    assert "asking for the whole model and going on with an empty residual" in said.text


def test_another_upload_to_the_same_round_is_reported_and_not_counted(tmp_path, said):
    class Killed(Compressed):
        def aggregate_train(self, server_round, replies):
            for reply in self._session.replies(replies):
                self._session.take(reply, 1)
            raise KeyboardInterrupt

    def otherwise(message, context):
        reply = train(message, context)
        arrays = {n: Array(-2 * a.numpy()) for n, a in reply.content["arrays"].items()}
        reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    grid = DirectGrid(tmp_path, [app(), app()])
    plain = FedAvg(min_available_nodes=1, fraction_evaluate=0.0)
    with pytest.raises(KeyboardInterrupt):
        Killed(plain, METHOD, store=tmp_path / "fed").start(grid, initial(), 2, 1)
    for path in [*grid.home(101).path.glob("*.safetensors"), *grid.home(101).path.glob("*.log")]:
        path.unlink()
    grid.apps[101] = app(otherwise)
    result = federate(grid, 1, strategy=plain, store=tmp_path / "fed")
    assert "node 101 (client 1): client 1: another upload of round 0" in said.text
    assert final(result, "nodes-dropped") == 1
    assert final(result, "uploads-counted") == 2  # the first one of each


def broken(change):
    """A train function whose arrays are changed afterwards."""

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
    "infinitely many examples": (claiming(float("inf")), "a whole number of at least 1, got inf"),
    "NaN": (broken(lambda a: a | {"bias": a["bias"] * np.nan}), "value nan at bias[0]"),
    "shape": (broken(lambda a: a | {"bias": a["bias"][1:]}), "shape (9,), expected (10,)"),
    "names": (broken(lambda a: {"weight": a["weight"], "b": a["bias"]}), "lack ['bias']"),
    "integers": (broken(lambda a: a | {"bias": a["bias"].astype(int)}), "'bias' is int64"),
    "error": (raising, "out of memory"),
    "no arrays": (without_arrays, "expected one ArrayRecord"),
    "no examples": (without_examples, "'num-examples', a whole number"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_node_that_has_nothing_usable_to_say_is_left_out_and_reported(tmp_path, said, fault):
    spoil, reason = FAULTS[fault]
    grid = DirectGrid(tmp_path, [app(), app(spoil), app()])
    result = federate(grid, 3, strategy=FedAvg(fraction_evaluate=0.0))
    assert [m["uploads-counted"] for m in result.train_metrics_clientapp.values()] == [2, 2, 2]
    assert final(result, "nodes-dropped") == 1
    assert final(result, "whole-models-sent") == 3
    assert "going on without node 101 (client 1)" in said.text
    assert reason in said.text
    grid.apps[101] = app()  # mended, it takes part as if nothing had been
    mended = federate(grid, 3, federation="run-7b")
    assert final(mended, "uploads-counted") == 3


def frame(data):
    return lambda reply: RecordDict(
        {KEY: ConfigRecord({KEY: data}), "metrics": MetricRecord({"num-examples": 1})}
    )


def flipped(reply):
    data = bytearray(reply.content[KEY][KEY])
    data[-1] ^= 1
    return frame(bytes(data))(reply)


GARBAGE = {
    "bytes": (frame(b"garbage"), "not a frame"),
    "nothing": (lambda reply: RecordDict(), "it answers without an upload"),
    "empty": (frame(b""), "ends 1 bytes early"),
    "flipped": (flipped, "checksum does not match"),
    "another client": (
        frame(messages.Answer(messages.UPLOAD, 0, 1, bytes(3), b"x").to_bytes()),
        "and client 0 is out of place",
    ),
    "not UTF-8": (frame(bytes([0xFD, 1, messages.LOST, 2, 1, 0, 0, 0, 0xFF])), "not UTF-8"),
    "kind": (frame(bytes([0xFD, 1, 99])), "kind 99"),
    "silence": (None, "no answer within 1 seconds"),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_on_the_wire_costs_its_node_the_round_and_nothing_else(tmp_path, said, garbage):
    make, reason = GARBAGE[garbage]
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
    counts = [m["uploads-counted"] for m in result.train_metrics_clientapp.values()]
    assert counts == [3, 2, 3, 3]
    assert reason in said.text
    assert final(result, "whole-models-sent") == 3


def test_a_silent_node_does_not_end_a_federation(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), None])
    result = federate(grid, 2)
    assert final(result, "uploads-counted") == 1
    assert "no answer" in said.text


def test_a_round_without_anybody_changes_nothing(tmp_path):
    result = federate(DirectGrid(tmp_path, [None]), 2, arrays=initial(0.5))
    assert final(result, "uploads-counted") == 0


def test_a_client_without_the_mod_is_told_what_it_lacks(tmp_path, said):
    result = federate(DirectGrid(tmp_path, [app(), app(compressed=False)]), 1)
    assert final(result, "uploads-counted") == 1
    told, *_ = [r.getMessage() for r in said.records if "without node 101" in r.getMessage()]
    assert "KeyError'>: 'arrays'" in told
    assert "does its ClientApp have mods=[fedtern.transports.flower.compression()]?" in told


def test_a_node_that_is_away_when_it_is_greeted_is_not_said_to_lack_the_mod(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), app()])
    away = Error(5, "Message Unavailable")
    grid.tamper = lambda node, reply: (
        Message(away, reply_to=grid.received[-1][1]) if node == 101 else reply
    )
    assert final(federate(grid, 1), "uploads-counted") == 1
    assert "going on without node 101: Message Unavailable" in said.text
    assert "mods=" not in said.text


def test_a_server_without_the_wrapper_is_told_what_it_lacks(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app()])
    (message, *_) = FedAvg().configure_train(1, initial(), ConfigRecord(), grid)
    (reply,) = grid.send_and_receive([message])
    assert "Wrap the strategy in fedtern.transports.flower.Compressed" in reply.error.reason


def test_a_federation_of_another_method_or_model_is_refused_by_the_node_and_named(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, federation="fed")
    result = federate(grid, 2, method=fedavg(), federation="fed")
    assert final(result, "uploads-counted") == 0
    dropped = [m["nodes-dropped"] for m in result.train_metrics_clientapp.values()]
    assert dropped == [2, 2]  # in every round that goes on without them
    told = [r.getMessage() for r in said.records if r.levelname == "ERROR"]
    here = [m for m in told if "this node cannot work with the server" in m]
    there = [m for m in told if "node 100 takes no part" in m]
    assert here
    assert there
    for message in (*here, *there):
        assert "name='stc'" in message
        assert "name='fedavg'" in message
    other = ArrayRecord({"w": Array(np.zeros(5, np.float32))})
    Compressed(FedAvg(**ANY), METHOD, federation="fed").start(grid, other, 1, 1)
    assert "310 values (weight (30, 10), bias (10,)) here and 5 values (w (5,)) there" in said.text


def test_arrays_under_another_key_are_no_other_federation(tmp_path, said):
    def look(message, context):
        (name,) = message.content.array_records
        content = RecordDict({**message.content, "arrays": message.content[name]})
        message.content = content
        seen.append(name)
        return train(message, context)

    seen, grid = [], DirectGrid(tmp_path, [app(look)])
    for rounds, key in enumerate(["arrays", "model", "model"], 1):
        plain = FedAvg(**{**ANY, "fraction_evaluate": 0.0}, arrayrecord_key=key)
        federate(grid, rounds, strategy=plain, store=tmp_path / "fed")
    assert seen == ["arrays", "model", "model"]


def test_another_protocol_is_refused_at_the_first_message_with_both_versions(
    tmp_path, said, monkeypatch
):
    hello = messages.Hello("9.9.9", {}).to_bytes()
    other = bytes([hello[0], 77]) + hello[2:]
    message = Message(RecordDict({KEY: ConfigRecord({KEY: other})}), 100, "train")
    (reply,) = DirectGrid(tmp_path, [app()]).send_and_receive([message])
    answer = messages.read_answer(reply.content[KEY][KEY])
    assert answer.kind == messages.REFUSED
    for text in (answer.reason, said.text):
        assert "fedtern 9.9.9 and speaks protocol 77" in text
        assert "this side speaks 1" in text


def test_a_method_that_the_node_does_not_know_is_refused(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), app()])
    tell = grid.send_and_receive

    def forge(messages, *, timeout=None):
        for message in messages:
            data = message.content.config_records[KEY][KEY] if KEY in message.content else b""
            forged = data.replace(b'"name": "stc"', b'"name": "my_stc"')
            if data:
                message.content.config_records[KEY][KEY] = forged
        return tell(messages, timeout=timeout)

    grid.send_and_receive = forge
    assert final(federate(grid, 1), "uploads-counted") == 0
    assert "Unknown method 'my_stc'. Did you mean" in said.text


def test_a_server_that_went_back_in_time_gives_its_clients_the_whole_model(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 3, federation="fed")
    result = federate(grid, 2, federation="fed")  # without a store it begins again
    assert final(result, "whole-models-sent") == 2
    assert final(result, "uploads-counted") == 2
    assert np.array_equal(grid.weights(100), flat(result.arrays))


def test_a_node_of_another_history_says_so_and_is_sent_the_whole_model(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, federation="fed", arrays=initial(1.0))
    federate(DirectGrid(tmp_path / "b", [app()]), 3, store=tmp_path / "fed")
    result = federate(grid, 6, store=tmp_path / "fed")
    assert "another federation, other initial weights" in said.text
    assert [m["uploads-counted"] for m in result.train_metrics_clientapp.values()] == [0, 2, 2]


def test_two_nodes_with_one_state_directory_are_told_apart(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, store=tmp_path / "fed")
    grid.apps[500] = app()
    grid.directory(500).symlink_to(grid.directory(101))
    result = federate(grid, 2, store=tmp_path / "fed")
    assert "share one state directory" in said.text
    assert final(result, "uploads-counted") == 2


def test_two_nodes_that_share_a_directory_from_the_beginning_are_told_and_lose_nothing(
    tmp_path, said
):
    grid = DirectGrid(tmp_path, [app(), app()])
    grid.directory(100).mkdir()
    grid.directory(101).symlink_to(grid.directory(100))
    result = federate(grid, 4)
    counts = [m["uploads-counted"] for m in result.train_metrics_clientapp.values()]
    assert counts == [1, 1, 1, 1]
    assert final(result, "whole-models-sent") == 1  # nobody has wiped anybody
    assert "(client 0): two nodes must not share one state directory" in said.text
    assert "has lost its state" not in said.text
    grid.directory(101).unlink()  # as the log advises
    mended = federate(grid, 2, federation="other")
    assert final(mended, "uploads-counted") == 2


def tell(grid, node, frame, kind="train"):
    message = Message(RecordDict({KEY: ConfigRecord({KEY: frame.to_bytes()})}), node, kind)
    (reply,) = grid.send_and_receive([message])
    return messages.read_answer(reply.content[KEY][KEY])


def test_the_turn_of_another_client_wipes_nobodys_state(tmp_path, said):
    grid = DirectGrid(tmp_path, [app()])
    result = federate(grid, 2)
    answer = tell(grid, 100, messages.Turn("run-7", False, True, 1, b""))
    assert answer.kind == messages.LOST
    assert "client 0's, and this is the turn of client 1: two nodes must not" in answer.reason
    assert answer.reason in said.text
    assert np.array_equal(grid.weights(100), flat(result.arrays))


def test_a_state_that_is_in_use_is_not_forgotten(tmp_path):
    grid = DirectGrid(tmp_path, [app()])
    result = federate(grid, 2)
    with Store(grid.home(100).path):  # as by a turn that has not ended
        answer = tell(grid, 100, messages.Turn("run-7", False, True, 0, b""))
        assert "locked by another process" in answer.reason
    assert np.array_equal(grid.weights(100), flat(result.arrays))


def numbers(grid, *nodes):
    return [json.loads(grid.home(node).note("membership"))["client"] for node in nodes]


def test_a_number_that_another_client_has_by_now_is_exchanged_for_a_new_one(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 3, federation="fed")
    old = dict(grid.apps)

    def join(message, context):
        grid.apps |= old  # they come back in the second round
        return train(message, context)

    grid.apps = {50: app(join)}
    result = federate(grid, 4, federation="fed")  # it has no store, and has forgotten
    counts = [m["uploads-counted"] for m in result.train_metrics_clientapp.values()]
    assert counts == [1, 3, 3, 3]
    assert numbers(grid, 50, 100, 101) == [0, 2, 1]
    assert "node 100 says that it is client 0, which node 50 is by now" in said.text
    assert "share one state directory" not in said.text
    for node in grid.apps:
        assert np.array_equal(grid.weights(node), flat(result.arrays))
    again = federate(grid, 6, federation="fed")
    assert numbers(grid, 50, 100, 101) == [0, 2, 1]
    assert final(again, "uploads-counted") == 3


def test_clients_that_come_with_one_number_get_two(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app(), app()])
    everybody = dict(grid.apps)
    for nodes in ([100], [101, 102]):  # a federation that has begun twice
        grid.apps = {node: everybody[node] for node in nodes}
        federate(grid, 1, federation="fed")
    grid.apps = everybody
    assert numbers(grid, 100, 101, 102) == [0, 0, 1]
    assert final(federate(grid, 3, federation="fed"), "uploads-counted") == 3
    assert numbers(grid, 100, 101, 102) == [0, 2, 1]


def test_a_new_number_that_was_not_heard_is_given_again(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app()])
    everybody = dict(grid.apps)
    for node, made in everybody.items():
        grid.apps = {node: made}
        federate(grid, 1, federation="fed")
    grid.apps, turns = everybody, []

    def reply(node, message, answer=grid._reply):
        turns.append(node)
        unheard = node == 101 and turns.count(101) == 2  # its first turn, after the hello
        return None if unheard else answer(node, message)

    grid._reply = reply
    result = federate(grid, 3, federation="fed", strategy=FedAvg(fraction_evaluate=0.0))
    counts = [m["uploads-counted"] for m in result.train_metrics_clientapp.values()]
    assert counts == [1, 2, 2]
    assert numbers(grid, 100, 101) == [0, 1]


def test_a_state_that_is_in_use_costs_its_node_the_round_only(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, store=tmp_path / "fed")
    with Store(grid.home(101).path):  # as by a turn that has not ended
        result = federate(grid, 2, store=tmp_path / "fed")
        assert final(result, "uploads-counted") == 1
    assert "is locked by another process" in said.text
    assert final(federate(grid, 3, store=tmp_path / "fed"), "uploads-counted") == 2


@pytest.fixture
def simulation(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtern.transports.flower.strategy.simulated", lambda _grid: True)
    return DirectSimulation(tmp_path, [app(), app()])


def test_states_of_a_simulation_live_in_the_context(tmp_path, simulation):
    result = federate(simulation, 3)
    assert final(result, "uploads-counted") == 2
    assert final(result, "whole-models-sent") == 2
    assert not list(tmp_path.iterdir())


def test_a_damaged_context_is_replaced_by_the_whole_model(simulation, said):
    federate(simulation, 2)
    for node in simulation.apps:
        simulation.state(node)[KEY]["state"] = b"damaged"
    result = federate(simulation, 3)
    assert "the state in the context cannot be read" in said.text
    assert final(result, "uploads-counted") == 2


def test_a_membership_that_vanishes_is_asked_for_again(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), app()])

    def tamper(node, reply):
        if node == 101 and len([n for n, _ in grid.received if n == 101]) == 1:
            (grid.home(101).path / "membership.json").unlink()
        return reply

    grid.tamper = tamper
    result = federate(grid, 2, strategy=FedAvg(fraction_evaluate=0.0))
    counts = [m["uploads-counted"] for m in result.train_metrics_clientapp.values()]
    assert counts == [1, 2]
    assert "this node knows of no federation 'run-7'" in said.text
    assert "has lost its state" in said.text


@pytest.mark.parametrize("text", [None, "{", "[]", '{"round": 0}', "\ud800"])
def test_an_upload_whose_metrics_are_gone_goes_back_into_the_residual(tmp_path, said, text):
    class Killed(Compressed):
        def aggregate_train(self, server_round, replies):
            raise KeyboardInterrupt

    grid = DirectGrid(tmp_path, [app(), app()])
    plain = FedAvg(min_available_nodes=1, fraction_evaluate=0.0)
    with pytest.raises(KeyboardInterrupt):
        Killed(plain, METHOD, store=tmp_path / "fed").start(grid, initial(), 2, 1)
    reply = grid.home(101).path / "reply.json"
    if text is None:
        reply.unlink()
    else:  # what is damaged is gone
        reply.write_bytes(text.encode(errors="surrogatepass"))
    result = federate(grid, 2, strategy=plain, store=tmp_path / "fed")
    counts = [m["uploads-counted"] for m in result.train_metrics_clientapp.values()]
    assert counts == [1, 2]
    assert "the metrics of the upload that this node made before are gone" in said.text


@pytest.mark.parametrize("value", [1.0, [1.0, 2.0]])
def test_nodes_with_other_metrics_count_but_not_in_the_metrics(tmp_path, said, value):
    def other(message, context):
        reply = train(message, context)
        reply.content["metrics"]["extra" if value == 1.0 else "loss"] = value
        return reply

    result = federate(DirectGrid(tmp_path, [app(), app(), app(other)]), 1)
    assert final(result, "uploads-counted") == 3
    assert "extra" not in result.train_metrics_clientapp[1]
    assert "report other metrics" in said.text


@pytest.mark.parametrize("examples", [0, -1, float("nan"), float("inf"), [1, 2]])
def test_evaluations_of_no_weight_are_left_out(tmp_path, said, examples):
    def odd(message, context):
        metrics = MetricRecord({"num-examples": examples, "mean": 1e9})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    apps = [app(), app(), ClientApp(mods=[compression()])]
    apps[2].train()(train)
    apps[2].evaluate()(odd)
    result = federate(DirectGrid(tmp_path, apps), 1)
    assert result.evaluate_metrics_clientapp[1]["mean"] < 1e6
    assert "1 nodes report other metrics" in said.text


def test_a_node_that_claims_a_number_without_end_takes_no_part(tmp_path, said):
    grid = DirectGrid(tmp_path, [app(), app()])
    lie = messages.Answer(messages.HERE, (1 << 64) - 2).to_bytes()
    grid.tamper = lambda node, reply: (
        Message(RecordDict({KEY: ConfigRecord({KEY: lie})}), reply_to=grid.received[-1][1])
        if node == 101
        else reply
    )
    result = federate(grid, 2, store=tmp_path / "fed")
    assert final(result, "uploads-counted") == 1
    assert [m["nodes-dropped"] for m in result.train_metrics_clientapp.values()] == [1, 1]
    assert "it says that it is client 18446744073709551614" in said.text
    grid.tamper, grid.apps[102] = (lambda _node, reply: reply), app()
    assert final(federate(grid, 3, store=tmp_path / "fed"), "uploads-counted") == 3


def test_a_file_that_cannot_be_read_for_now_costs_a_client_nothing(tmp_path, monkeypatch, said):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 2, store=tmp_path / "fed")
    read, failing = Path.read_text, [True]

    def fail(path, *args, **options):
        if path == grid.home(101).path / "membership.json" and failing:
            failing.clear()
            raise OSError(24, "Too many open files")
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", fail)
    result = federate(grid, 4, store=tmp_path / "fed")
    assert not failing
    assert final(result, "whole-models-sent") == 2
    assert final(result, "uploads-counted") == 2


def test_figures_that_cannot_be_read_do_not_keep_a_federation_from_going_on(tmp_path, said):
    grid = DirectGrid(tmp_path, [app()])
    federate(grid, 2, store=tmp_path / "fed")
    metrics = tmp_path / "fed" / "metrics.jsonl"
    metrics.write_bytes(bytes(20) + b"\n" + metrics.read_bytes())
    federate(grid, 3, store=tmp_path / "fed")
    assert [e["round"] for e in load_run(tmp_path / "fed").evaluations] == [1, 2, 3]
    assert "dropped a line that cannot be read" in said.text


def test_a_superlink_that_does_not_tell_what_it_counts_is_no_error():
    grid = SimpleNamespace(_addr="127.0.0.1:1", _insecure=True, _cert=None, run=Run.create_empty(1))
    assert count_wire(grid) is None


def test_what_flower_counted_is_added_up_over_runs(tmp_path, monkeypatch):
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


def test_a_broken_disk_of_the_server_is_not_blamed_on_a_node(tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise StoreError("no space left")

    monkeypatch.setattr(DurableServer, "receive", fail)
    with pytest.raises(StoreError, match="no space left"):
        federate(DirectGrid(tmp_path, [app()]), 1, store=tmp_path / "fed")


def test_numbers_of_old_clients_are_not_given_to_new_ones(tmp_path):
    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, federation="fed")
    grid.apps = {50: app(), **grid.apps}
    result = federate(grid, 1, federation="fed")  # it has no store, and has forgotten
    assert final(result, "uploads-counted") == 3
    numbers = [json.loads(grid.home(n).note("membership"))["client"] for n in (50, 100, 101)]
    assert numbers == [2, 0, 1]


def test_other_arrays_of_a_strategy_reach_the_app(tmp_path):
    class Controlled(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                message.content["control"] = initial(0.25)
                yield message

    seen = []

    def look(message, context):
        seen.append(message.content["control"]["bias"].numpy().mean())
        return train(message, context)

    federate(DirectGrid(tmp_path, [app(look)]), 1, strategy=Controlled(**ANY))
    assert seen == [0.25]


def test_it_is_used_through_start_only(tmp_path):
    with pytest.raises(LocalProtocolError, match=r"outside of its start\(\)"):
        Compressed(FedAvg()).configure_train(1, initial(), ConfigRecord(), DirectGrid(tmp_path, []))


@pytest.mark.parametrize(
    "name", ["FedAdam", "FedAvgM", "FedMedian", "Krum", "FedTrimmedAvg", "QFedAvg"]
)
def test_strategies_that_aggregate_in_their_own_way_are_refused_by_name(name):
    made = getattr(strategies, name)(**({"client_learning_rate": 0.1} if name == "QFedAvg" else {}))
    with pytest.raises(ValueError, match=f"cannot wrap {name}.*Use FedAvg, FedProx"):
        Compressed(made)


def test_a_strategy_with_a_start_of_its_own_is_refused():
    class Own(FedAvg):
        def start(self, *args, **options):
            raise NotImplementedError

    with pytest.raises(ValueError, match=r"cannot wrap Own: .* leaves aggregate_train and start"):
        Compressed(Own())


def test_a_strategy_may_aggregate_evaluations_in_its_own_way(tmp_path):
    seen = []

    class Watching(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            found = super().aggregate_evaluate(server_round, replies)
            seen.append((server_round, [r.content["metrics"]["num-examples"] for r in replies]))
            return MetricRecord({"mine": 2 * found["mean"]}) if found else None

    grid = DirectGrid(tmp_path, [app(), app()])
    federate(grid, 1, strategy=Watching(**ANY), store=tmp_path / "fed")
    result = federate(grid, 2, strategy=Watching(**ANY), store=tmp_path / "fed")
    assert seen == [(1, [1, 1]), (2, [1, 1])]
    mean = flat(result.arrays)[-10:].mean()
    assert result.evaluate_metrics_clientapp[2]["mine"] == pytest.approx(2 * mean)


def test_evaluations_that_nobody_has_weighed_are_left_out_and_said(tmp_path, said):
    def unweighed(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"mean": 1.0})}), reply_to=message)

    made = ClientApp(mods=[compression()])
    made.train()(train)
    made.evaluate()(unweighed)
    result = federate(DirectGrid(tmp_path, [made]), 1)
    assert "mean" not in result.evaluate_metrics_clientapp[1]
    expected = "1 nodes report other metrics than ['mean'] in 'metrics', or no 'num-examples'"
    assert expected in said.text


def test_a_record_of_another_name_is_left_out_and_ends_nothing(tmp_path, said):
    def elsewhere(message, context):
        found = MetricRecord({"mean": 1.0, "num-examples": 1})
        return Message(RecordDict({"other": found}), reply_to=message)

    odd = ClientApp(mods=[compression()])
    odd.train()(train)
    odd.evaluate()(elsewhere)
    result = federate(DirectGrid(tmp_path, [app(), app(), odd]), 2)
    assert result.evaluate_metrics_clientapp[2]["mean"] != 1.0
    assert "1 nodes report other metrics than ['mean', 'num-examples'] in 'metrics'" in said.text


def test_what_is_no_strategy_is_refused():
    with pytest.raises(ValueError, match="cannot wrap str"):
        Compressed("FedAvg")


def test_arrays_that_cannot_be_compressed_are_refused_by_name(tmp_path):
    arrays = ArrayRecord({"bn.num_batches_tracked": Array(np.zeros((), np.int64))})
    with pytest.raises(ValueError, match=r"'bn.num_batches_tracked' is int64; only float32"):
        Compressed(FedAvg()).start(DirectGrid(tmp_path, [app()]), arrays)
    with pytest.raises(ValueError, match="hold no array"):
        Compressed(FedAvg()).start(DirectGrid(tmp_path, [app()]), ArrayRecord())


def test_a_store_of_another_federation_is_refused(tmp_path):
    federate(DirectGrid(tmp_path, [app()]), 1, store=tmp_path / "fed")
    with pytest.raises(StoreError, match="belongs to something else"):
        federate(DirectGrid(tmp_path, [app()]), 1, store=tmp_path / "fed", method=signsgd())


def test_a_run_can_be_reported_on(tmp_path):
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
    assert "STC p=1/20 reached 30.0" in page
    assert "On the wire:" not in page  # there was none


def test_a_damaged_ledger_is_named(tmp_path):
    federate(DirectGrid(tmp_path, [app()]), 1, store=tmp_path / "fed")
    (tmp_path / "fed/ledger.json").write_text("[]")
    with pytest.raises(StoreError, match=r"ledger\.json is damaged"):
        federate(DirectGrid(tmp_path, [app()]), 1, store=tmp_path / "fed")


def test_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a name of at most 64 bytes"):
        federate(DirectGrid(tmp_path, [app()]), 1, federation="x" * 65)


def test_names_of_federations_are_safe_names_of_directories(tmp_path):
    grid = DirectGrid(tmp_path, [app()])
    federate(grid, 1, federation="../../etc/ü x")
    assert grid.home(100).path.name == "federation-..%2F..%2Fetc%2F%C3%BC%20x"


def test_without_a_directory_a_node_uses_one_of_the_users(tmp_path, monkeypatch):
    grid = DirectGrid(tmp_path, [app()])
    monkeypatch.setattr(grid, "directory", lambda node: "")
    federate(grid, 1)
    assert (tmp_path / "state-home/fedtern/flower/100/federation-run-7/membership.json").exists()
