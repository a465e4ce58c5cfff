from __future__ import annotations

import json
import math

from fedtern.report.live.watcher import COLUMNS, Subscription, Watcher
from fedtern.runs.status import RUNNING, Status, StatusFile
from report.fake_runs import METHODS, config, evaluations, write_run

STC = METHODS[0][0]


def events(subscription, kind="run"):
    return [data for name, data in subscription.wait(0) if name == kind]


def status(round, up=0, down=0):
    return Status(round, round, up, down, up / 10, down / 10)


def test_new_evaluations_are_sent_once(tmp_path):
    measured = evaluations(STC, 0)
    path = write_run(tmp_path / "run", config(STC), measured[:3])
    watcher = Watcher([tmp_path])
    watcher.scan()
    subscription = Subscription(watcher)
    (first,) = events(subscription)
    assert first["replace"]
    assert len(first["rows"]) == 3
    row = dict(zip(COLUMNS, first["rows"][-1], strict=True))
    assert row["metric"] == measured[2]["accuracy"]
    assert row["seconds"] == sum(measured[2]["seconds"].values())
    watcher.scan()
    assert events(subscription) == []
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(measured[3]) + "\n" + json.dumps(measured[4])[:20])
    watcher.scan()
    (second,) = events(subscription)
    assert not second["replace"]
    assert [row[0] for row in second["rows"]] == [measured[3]["iteration"]]


def test_a_resumed_run_that_repeats_evaluations_is_sent_again(tmp_path):
    measured = evaluations(STC, 0)
    path = write_run(tmp_path / "run", config(STC), measured[:5])
    watcher = Watcher([path])
    watcher.scan()
    subscription = Subscription(watcher)
    events(subscription)
    draft = tmp_path / "draft"
    draft.write_text("".join(json.dumps(row) + "\n" for row in measured[:2]))
    draft.replace(path / "metrics.jsonl")
    watcher.scan()
    (again,) = events(subscription)
    assert again["replace"]
    assert len(again["rows"]) == 2


def test_runs_that_appear_and_disappear_are_reported(tmp_path):
    watcher = Watcher([tmp_path / "runs"])
    watcher.scan()
    subscription = Subscription(watcher)
    assert events(subscription) == []
    path = write_run(tmp_path / "runs" / "a", config(STC), evaluations(STC, 0))
    watcher.scan()
    assert [data["id"] for data in events(subscription)] == [str(path)]
    path.rename(tmp_path / "elsewhere")
    watcher.scan()
    assert events(subscription, "gone") == [{"ids": [str(path)]}]


def test_seeds_are_part_of_labels_only_if_there_are_several(tmp_path):
    write_run(tmp_path / "0", config(STC, 0), evaluations(STC, 0))
    watcher = Watcher([tmp_path])
    watcher.scan()
    subscription = Subscription(watcher)
    assert [data["label"] for data in events(subscription)] == ["STC p=1/400"]
    write_run(tmp_path / "1", config(STC, 1), evaluations(STC, 1))
    watcher.scan()
    labels = {data["label"] for data in events(subscription)}
    assert labels == {"STC p=1/400, seed 0", "STC p=1/400, seed 1"}


def test_only_the_latest_runs_are_followed(tmp_path):
    for seed in range(4):
        write_run(tmp_path / str(seed), config(STC, seed), evaluations(STC, seed))
    watcher = Watcher([tmp_path], most_runs=2)
    watcher.scan()
    assert len(events(Subscription(watcher))) == 2


def test_traffic_per_second_is_the_difference_of_two_statuses(tmp_path):
    running = {**config(STC), "finished": False}
    path = write_run(tmp_path / "run", running, evaluations(STC, 0)[:1])
    (path / "config.json").write_text(json.dumps(running))
    file = StatusFile(path, interval=0)
    watcher = Watcher([path])
    file.write(status(100))
    watcher.scan()
    file.write(status(200, up=1000, down=4000))
    watcher.scan()
    (found,) = events(Subscription(watcher))
    assert found["state"] == RUNNING
    assert found["eta"] > 0
    ((_, up, down),) = found["samples"]
    assert up > 0
    assert math.isclose(down / up, 4, rel_tol=0.01)


def test_long_runs_are_thinned_but_keep_their_last_evaluation(tmp_path):
    rows = [{"iteration": i, "round": i, "loss": 1.0, "accuracy": 0.5} for i in range(1, 4002)]
    path = write_run(tmp_path / "run", config(STC), rows)
    watcher = Watcher([path])
    watcher.scan()
    (found,) = events(Subscription(watcher))
    assert len(found["rows"]) < 1600
    assert found["rows"][-1][0] == 4001


def test_damaged_files_are_left_out(tmp_path):
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"method": 3}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    path = write_run(tmp_path / "run", config(STC), evaluations(STC, 0)[:2])
    (path / "status.json").write_text("{")
    with (path / "metrics.jsonl").open("a") as file:
        file.write("damaged\n[]\n")
    watcher = Watcher([tmp_path])
    watcher.scan()
    (found,) = events(Subscription(watcher))
    assert found["id"] == str(path)
    assert len(found["rows"]) == 2


def test_closing_sends_the_last_changes_and_the_end(tmp_path):
    watcher = Watcher([tmp_path], interval=1000)
    watcher.start()
    subscription = Subscription(watcher)
    subscription.wait(0)
    write_run(tmp_path / "run", config(STC), evaluations(STC, 0))
    watcher.close()
    assert [name for name, _ in subscription.wait(0)] == ["run", "end"]
