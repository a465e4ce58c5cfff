from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fedtern.advice import LESSONS, Point, Record, Situation, advise, collect, dump, load, merge
from fedtern.cli.app import app
from fedtern.core.analytic import bits
from fedtern.core.layout import Layout
from fedtern.core.methods import METHODS, make_method
from fedtern.data.environment import Environment
from fedtern.runs.method_text import complete, parse_method
from fedtern.runs.recorded_run import load_run

STC = {"name": "stc", "p_up": 1 / 400, "p_down": 1 / 400, "local_steps": 1, "scope": "model"}
FEDAVG = {"name": "fedavg", "local_steps": 100, "weighted": False}


def record(method, curve, momentum=0.0, parameters=7850, **environment):
    """A run that stood at these accuracies after 100, 200, ... iterations."""
    rounds = [100 * (i + 1) / method["local_steps"] for i in range(len(curve))]
    each = 60 if method is STC else 4 * parameters
    points = tuple(
        Point(100 * (i + 1), accuracy, each * rounds[i], 5 * each * rounds[i])
        for i, accuracy in enumerate(curve)
    )
    where = Environment(**environment)
    trained = momentum, 0.04, 0.0
    return Record("logistic-mnist", parameters, method, *trained, where, 300, 300, 1, points)


def both(stc, fedavg, **environment):
    return [record(STC, stc, **environment), record(FEDAVG, fedavg, **environment)]


IID = both([0.5, 0.8, 0.9], [0.8, 0.89, 0.9])
SKEWED = both([0.3, 0.6, 0.88], [0.2, 0.3, 0.4], classes_per_client=1)


def test_what_is_quickest_in_the_nearest_runs_is_recommended():
    slow_link = Situation(parameters=7850, up=1e3, down=1e3, latency=0)
    advice = advise(slow_link, IID + SKEWED)
    assert advice.method["name"] == "stc"
    assert [e.record.method["name"] for e in advice.estimates] == ["stc", "fedavg"]
    slow_rounds = Situation(parameters=7850, up=1e9, down=1e9, latency=60)
    assert advise(slow_rounds, IID + SKEWED).method["name"] == "fedavg"


def test_a_method_that_does_not_get_there_is_not_recommended_however_quick():
    advice = advise(Situation(classes=1, parameters=7850, up=1e9, latency=60), IID + SKEWED)
    assert advice.method["name"] == "stc"
    assert advice.estimates[-1].reached is None
    assert any("did not get there: FedAvg n=100 (40.00 %)" in reason for reason in advice.reasons)
    assert any(reason.startswith("lesson 1") for reason in advice.reasons)


def test_estimates_are_the_recorded_figures_scaled_to_the_model():
    situation = Situation(parameters=7850, up=8e3, down=8e4, latency=2, step=0.5, within=0.02)
    first = advise(situation, IID).estimates
    fedavg = next(e for e in first if e.record.method is FEDAVG)
    assert fedavg.reached is not None
    assert fedavg.reached.iteration == 200  # 0.89 is within two points of 0.9
    assert (fedavg.rounds, fedavg.up, fedavg.down) == (2, 2 * 31400, 10 * 31400)
    assert fedavg.seconds == pytest.approx(2 * 2 + 62800 / 1e3 + 314000 / 1e4 + 200 * 0.5)
    larger = advise(Situation(parameters=78_500), IID).estimates
    assert next(e for e in larger if e.record.method is FEDAVG).up == 20 * 31400


def test_momentum_is_as_in_the_better_run_and_both_are_named():
    records = [*IID, record(STC, [0.7, 0.9, 0.92], momentum=0.9)]
    advice = advise(Situation(parameters=7850, up=1e3), records)
    assert advice.momentum == 0.9
    assert any("momentum 0.9: at best 92.0 % there, with 0 90.0 %" in r for r in advice.reasons)


@pytest.mark.parametrize(
    ("situation", "method", "momentum"),
    [
        (Situation(classes=1), "stc", 0.0),
        (Situation(batch_size=1, latency=100), "stc", 0.0),
        (Situation(participation=0.01, latency=100), "stc", 0.0),
        (Situation(latency=100), "fedavg", 0.9),
        (Situation(latency=0.01), "stc", 0.9),
    ],
)
def test_without_runs_the_lessons_decide(situation, method, momentum):
    advice = advise(situation, [])
    assert (advice.method["name"], advice.momentum) == (method, momentum)
    assert "by the lessons alone" in advice.reasons[0]


@pytest.mark.parametrize(
    ("situation", "option"),
    [
        (Situation(participation=0.01, latency=100), "stc:p_up=1/25,p_down=1/25,local_steps=25"),
        (Situation(participation=0.01, latency=100, classes=2), "stc:p_up=1/400,p_down=1/400"),
        (Situation(participation=0.01), "stc:p_up=1/400,p_down=1/400"),
    ],
)
def test_where_rounds_are_slow_and_data_is_iid_there_are_fewer_of_them(situation, option):
    assert advise(situation, []).method_option == option


def test_full_runs_further_off_are_gone_by_rather_than_short_ones():
    short = [replace(found, task="cnn-kws", own_iterations=3000) for found in SKEWED]
    near = Situation(classes=1, parameters=7850)
    full = [replace(found, parameters=100_000) for found in SKEWED]
    assert advise(near, short + full).scene.records == tuple(full)
    assert advise(near, short).scene.name.endswith("batches of 20, 300 of 3,000 iterations")


def test_runs_without_what_the_lessons_compare_are_gone_by_last():
    topk = [{**STC, "name": "topk", "p_up": 1 / n} for n in (10, 100, 400)]
    one_sided = [record(method, [0.5, 0.8, 0.9]) for method in (STC, *topk)]
    situation = Situation(parameters=7850, latency=100)
    assert advise(situation, one_sided + IID).method["name"] == "fedavg"


def test_a_lesson_is_contradicted_only_by_runs_of_what_it_compares():
    quick = {**METHODS["qsgd"].parameters, "name": "qsgd"}
    runs = [*SKEWED, record(quick, [0.9, 0.9, 0.9], classes_per_client=1)]
    situation = Situation(classes=1, parameters=7850, up=1e9, down=1e9, latency=60)
    advice = advise(situation, runs)
    assert advice.method["name"] == "qsgd"
    assert not any("against lesson" in reason for reason in advice.reasons)
    turned = both([0.2, 0.3, 0.4], [0.3, 0.6, 0.88], classes_per_client=1)
    assert any("against lesson 1" in reason for reason in advise(situation, turned).reasons)
    alone = [found for found in turned if found.method is FEDAVG]
    twice = [*alone, record(quick, [0.1, 0.1, 0.1], classes_per_client=1)]
    assert not any("against lesson" in reason for reason in advise(situation, twice).reasons)


def test_a_lesson_about_bytes_is_contradicted_by_bytes_only():
    quick_rounds = Situation(parameters=785_000, up=1e6, down=1e8, latency=5)
    advice = advise(quick_rounds, [replace(found, parameters=785_000) for found in IID])
    assert advice.method["name"] == "fedavg"
    assert min(advice.estimates, key=lambda e: e.up).record.method["name"] == "stc"
    assert not any("lesson 4" in reason for reason in advice.reasons)
    failed = record({**STC, "p_up": 1 / 25, "p_down": 1 / 25}, [0.1, 0.1, 0.1])
    more = [replace(found, parameters=785_000) for found in (*IID, failed)]
    assert not any("lesson 4" in reason for reason in advise(quick_rounds, more).reasons)
    short = [replace(found, points=found.points[:2]) for found in IID]
    turned = advise(quick_rounds, [replace(found, parameters=785_000) for found in short])
    assert any("against lesson 4" in reason for reason in turned.reasons)


def test_short_runs_nearby_are_better_than_full_ones_that_are_too_far():
    short = [replace(found, own_iterations=3000) for found in SKEWED]
    assert advise(Situation(classes=1, parameters=7850), short + IID).scene.records == tuple(short)


def test_momentum_that_did_good_is_said_to_be_against_the_lesson():
    better = [*SKEWED, record(STC, [0.9, 0.9, 0.92], momentum=0.9, classes_per_client=1)]
    advice = advise(Situation(classes=1, parameters=7850, up=1e3), better)
    assert advice.momentum == 0.9
    assert any(reason.startswith("against lesson 6") for reason in advice.reasons)
    assert not any(reason.startswith("lesson 6") for reason in advice.reasons)
    alone = [found for found in better if found.momentum or found.method is FEDAVG]
    advice = advise(Situation(classes=1, parameters=7850, up=1e3), alone)
    assert any("nothing was recorded without 0.9 of it" in reason for reason in advice.reasons)


def test_runs_that_are_too_far_away_do_not_decide():
    advice = advise(Situation(clients=10_000, participation=0.001, batch_size=1), IID)
    assert "too far" in advice.reasons[0]
    assert advice.far
    out = CliRunner().invoke(app, ["advise", "--clients", "10000", "--participation", "0.0001"])
    assert "which is too far to go by" in out.output


def test_but_they_do_say_how_sparse_an_stc_that_the_lessons_recommend_should_be():
    finer = {**STC, "p_up": 1 / 25, "p_down": 1 / 25}
    far = Situation(classes=1, clients=1000, participation=0.001, up=1e9, down=1e9, latency=9)
    advice = advise(far, [*SKEWED, record(finer, [0.6, 0.88, 0.89], classes_per_client=1)])
    assert advice.far
    assert advice.method == finer
    assert any("the quickest of STC's in those runs" in reason for reason in advice.reasons)
    delayed = {**finer, "local_steps": 25}  # of delay they say nothing
    slow = [*SKEWED, record(delayed, [0.88, 0.89, 0.89], classes_per_client=1)]
    assert advise(far, slow).method == STC
    assert advise(far, SKEWED).method == STC


def test_what_a_method_that_fell_short_stood_at_is_called_its_best():
    out = CliRunner().invoke(app, ["advise", "--classes", "1"])
    assert "at best 7" in out.output


def test_what_is_around_a_message_does_not_grow_with_the_model():
    situation = Situation(parameters=785_000, up=1e3)
    (stc, _) = sorted(advise(situation, IID).estimates, key=lambda e: e.up)
    # 300 messages of 60 bytes, of which the formula knows 26: a hundred times that, and the rest.
    formula = bits(make_method(STC).up, Layout.flat(7850)) / 8
    larger = bits(make_method(STC).up, Layout.flat(785_000)) / 8
    assert 25 < formula < 28
    assert stc.up == pytest.approx(300 * (32 + (60 - 32) * larger / formula))
    tiny = Situation(parameters=1, up=1e3)
    assert all(e.up >= 300 * 32 for e in advise(tiny, IID).estimates if e.record.method is STC)


def test_who_is_away_for_longer_downloads_more_up_to_the_model():
    down = {}
    for share in (0.1, 0.05, 1e-6):
        situation = Situation(clients=10_000_000, participation=share, parameters=785_000)
        for found in advise(situation, IID).estimates:
            down.setdefault(found.record.method["name"], []).append(found.down)
    near, half, never = down["stc"]
    assert half == pytest.approx(2 * near, rel=0.05)
    assert never < 300 * 5 * 4 * 785_000 * 1.01
    assert len(set(down["fedavg"])) == 1


def test_parameters_that_are_not_usual_are_part_of_the_method():
    records = both([0.5, 0.8, 0.9], [0.1, 0.1, 0.1])
    for method, option in (
        ({"name": "dgc", "p": 0.01, "momentum": 0.0}, "dgc:p=1/100,momentum=0"),
        ({"name": "structured", "rank": 2}, "structured:rank=2"),
        ({"name": "stc", "p_up": 0.0123456789, "weighted": True},
         "stc:p_up=0.0123456789,p_down=1/400,weighted=true"),
    ):  # fmt: skip
        local = {**METHODS[method["name"]].parameters, **method}
        points = records[0].points
        odd = replace(records[0], method=local, points=tuple(p._replace(up=0.0) for p in points))
        told = advise(Situation(parameters=7850, up=1e3), [odd, records[1]]).method_option
        assert told == option
        assert complete(parse_method(told)) == local


def test_every_lesson_speaks_up_somewhere():
    situations = [
        Situation(classes=1), Situation(batch_size=1), Situation(participation=0.01),
        Situation(latency=0.01), Situation(latency=100),
    ]  # fmt: skip
    spoken = {m.number for m in LESSONS for s in situations if m.applies(s)}
    assert spoken == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0}, {"participation": 0.0}, {"classes": 11}, {"up": 0.0}, {"down": -1.0},
        {"latency": -1.0}, {"parameters": 0}, {"within": -0.1},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must"):
        Situation(**wrong)


def test_records_survive_being_written():
    assert load(dump(IID)) == load(dump(load(dump(IID))))
    assert load(dump(IID))[0].points == IID[0].points
    assert dump(reversed(IID)) == dump(IID)


def test_records_are_added_to_those_there_are_and_replace_their_own():
    first, second, *rest = IID
    longer = replace(first, points=(*first.points, Point(10_000, 0.99, 1, 1)))
    merged = merge([first, second], [longer, *rest])
    assert len(merged) == len(IID)
    assert {first.method["name"], second.method["name"]} <= {r.method["name"] for r in merged}
    assert longer in merged
    assert first not in merged
    assert merge([replace(first, seeds=3)], [longer]) == [replace(first, seeds=3)]


def write_run(path, seed, accuracies, finished=True, method=STC, iterations=300):
    path.mkdir()
    place = {"clients": 17, "participation": 1.0}
    config = {
        "task": "logistic-mnist", "method": method, "environment": place,
        "iterations": iterations,
        "learning_rate": 0.04, "momentum": 0.0, "weight_decay": 0.0, "seed": seed,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps({**config, "finished": finished}))
    tested = [iterations * (i + 1) // len(accuracies) for i in range(len(accuracies))]
    lines = [
        {
            "iteration": tested[i], "accuracy": accuracy, "up_bytes_mean": 6000.0 * (i + 1),
            "down_bytes_mean": 30000.0 * (i + 1), "dense_bytes": 4 * 7850 * tested[i],
        }
        for i, accuracy in enumerate(accuracies)
    ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load_run(path)


def test_seeds_of_one_cell_become_one_record_and_unfinished_runs_none(tmp_path):
    runs = [
        write_run(tmp_path / "a", 0, [0.5, 0.8, 0.9]),
        write_run(tmp_path / "b", 1, [0.7, 0.8, 0.8]),
        write_run(tmp_path / "c", 2, [0.1, 0.1, 0.1], finished=False),
    ]
    (found,) = collect(runs)
    assert found.seeds == 2
    assert found.parameters == 7850
    assert [point.accuracy for point in found.points] == [0.6, 0.8, 0.85]


def test_curves_are_whole_and_only_those_measured_alike_are_averaged(tmp_path):
    accuracies = [0.1 + i / 200 for i in range(60)]
    accuracies[37] = 0.95
    run = write_run(tmp_path / "a", 0, accuracies, iterations=6000)
    (whole,) = collect([run], {"logistic-mnist": 10_000})
    assert (len(whole.points), whole.best) == (60, 0.95)
    assert whole.reaching(0.95).iteration == 3800
    assert (whole.iterations, whole.own_iterations) == (6000, 10_000)
    again = write_run(tmp_path / "b", 0, accuracies)
    (twice,) = collect([again, again])
    assert twice.seeds == 1
    other = write_run(tmp_path / "c", 1, [0.5])
    other.config["evaluate_every"] = 300
    assert [found.seeds for found in collect([again, other])] == [1, 1]


def test_what_takes_longer_than_a_calendar_has_is_no_traceback():
    out = CliRunner().invoke(app, ["advise", "--latency", "1e15"])
    assert out.exit_code == 0, out.output
    assert "ages" in out.output


def test_the_command_recommends_and_says_why():
    out = CliRunner().invoke(app, ["advise", "--classes", "1"])
    assert out.exit_code == 0, out.output
    assert out.output.startswith("--method stc")
    assert "lesson 1" in out.output
    assert "FedAvg" in out.output
    found = json.loads(CliRunner().invoke(app, ["advise", "--classes", "1", "--json"]).output)
    assert found["method"].startswith("stc:")
    assert any(not row["reaches_target"] for row in found["estimates"])


def test_the_command_refuses_in_a_sentence():
    out = CliRunner().invoke(app, ["advise", "--classes", "11"])
    assert out.exit_code == 1
    assert "classes must be between 1 and the 10 there are, got 11" in out.output


def test_runs_of_ones_own_count(tmp_path):
    write_run(tmp_path / "a", 0, [0.5, 0.8, 0.9], iterations=5000)
    write_run(tmp_path / "b", 0, [0.1, 0.2, 0.95], method=FEDAVG, iterations=5000)
    write_run(tmp_path / "c", 1, [0.1], finished=False)
    own = [option for name in "abc" for option in ("--runs", str(tmp_path / name))]
    ours = ["advise", "--clients", "17", "--participation", "1", "--parameters", "7850", "--json"]
    out = CliRunner().invoke(app, [*ours, *own])
    assert out.exit_code == 0, out.output
    found = json.loads(out.stdout)
    assert found["recorded_in"].startswith("logistic-mnist, 17 of 17 clients")
    assert {row["best_accuracy"] for row in found["estimates"]} == {0.9, 0.95}
    assert out.stderr == f"fedtern: {tmp_path / 'c'} is not finished and does not count\n"
    for name, method in (("d", STC), ("e", FEDAVG)):  # a handful of iterations
        write_run(tmp_path / name, 0, [0.5], method=method)
    brief = [option for name in "de" for option in ("--runs", str(tmp_path / name))]
    short = CliRunner().invoke(app, [*ours, *brief])
    assert "other runs are nearer or tell more" in short.stderr
    alone = CliRunner().invoke(app, [*ours, "--runs", str(tmp_path / "a")])
    assert "the answer is not from --runs" in alone.stderr
    assert not json.loads(alone.stdout)["recorded_in"].startswith("logistic-mnist, 17 of 17")


def test_runs_at_another_learning_rate_are_not_compared(tmp_path):
    write_run(tmp_path / "a", 0, [0.5, 0.8, 0.9], iterations=5000)
    slow = write_run(tmp_path / "b", 0, [0.1, 0.2, 0.3], method=FEDAVG, iterations=5000)
    (tmp_path / "b" / "config.json").write_text(json.dumps({**slow.config, "learning_rate": 1e-4}))
    own = [option for name in "ab" for option in ("--runs", str(tmp_path / name))]
    ours = ["advise", "--clients", "17", "--participation", "1", "--parameters", "7850"]
    out = CliRunner().invoke(app, [*ours, *own])
    assert out.exit_code == 0, out.output
    assert "17 of 17" not in out.stdout
    assert "at the same learning rate" in out.stderr


def test_a_run_of_ones_own_does_not_compete_with_more_seeds_of_the_same():
    known = next(r for r in load() if r.task == "logistic-mnist" and r.seeds == 3)
    lucky = replace(known, seeds=1, points=(known.points[0]._replace(accuracy=1.0),))
    assert merge(load(), [lucky]) == load()
    other = replace(lucky, learning_rate=1.0)
    assert len(merge(load(), [other])) == len(load()) + 1


def test_mixtures_of_classes_are_not_taken_for_iid_data():
    mixed = both([0.1, 0.2, 0.3], [0.3, 0.6, 0.88], split="dirichlet", concentration=0.05)
    alike, apart = Situation(parameters=7850), Situation(classes=1, parameters=7850)
    assert advise(alike, mixed).far
    assert not advise(apart, mixed).far
    assert "dirichlet data (concentration 0.05)" in advise(apart, mixed).scene.name


def test_a_run_whose_metrics_are_cut_off_does_not_count(tmp_path):
    whole = write_run(tmp_path / "a", 0, [0.5, 0.8, 0.9])
    metrics = tmp_path / "a" / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-10])
    assert len(collect([whole])) == 1
    assert collect([load_run(tmp_path / "a")]) == []
    out = CliRunner().invoke(app, ["advise", "--runs", str(tmp_path / "a")])
    assert "is finished, but its metrics.jsonl ends early, and does not count" in out.stderr
    nowhere = CliRunner().invoke(app, ["advise", "--runs", str(tmp_path)])
    assert f"{tmp_path} is no run, though runs may be in it" in nowhere.stderr


def test_what_lessons_leave_open_is_as_in_the_run_that_says_how_sparse():
    advice = advise(Situation(batch_size=10**6), load())
    assert advice.far
    (row,) = [e for e in advice.estimates if e.record.method == advice.method]
    assert advice.momentum == row.record.momentum
    assert any(reason.startswith(f"momentum {advice.momentum:g}: ") for reason in advice.reasons)


def test_runs_of_like_clients_are_not_gone_by_where_clients_differ():
    assert "5 classes each" in advise(Situation(classes=5), load()).scene.name


def test_nobody_downloads_more_than_the_model():
    advice = advise(Situation(clients=10**6, participation=1e-4, classes=2), load())
    stc = next(e for e in advice.estimates if e.record.method["name"] == "stc")
    assert stc.down <= stc.rounds * 4_000_100


@pytest.mark.parametrize("option", [["--up", "1e-310"], ["--latency", "1.7e308"]])
def test_what_takes_for_ever_is_no_number_in_json(option):
    out = CliRunner().invoke(app, ["advise", *option, "--json"])
    assert out.exit_code == 0, out.output
    found = json.loads(out.stdout, parse_constant=pytest.fail)
    assert None in {row["seconds"] for row in found["estimates"]}
