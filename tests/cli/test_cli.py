"""``fedtern inspect``, and the command itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import fedtern
from checks import LAYOUT, METHODS, pair, trained
from fedtern import Client, DecodeError, Layout, Server
from fedtern.cli import app
from fedtern.core.codecs import (
    AdaptiveCodec,
    BinaryCodec,
    PaletteCodec,
    SparseCodec,
    TernaryCodec,
)
from fedtern.core.envelope import UPLOAD, seal
from fedtern.core.extras import install_command
from fedtern.core.inspection import inspect
from fedtern.core.layout import Carried
from fedtern.core.protocol.messages import CohortNotice
from fedtern.core.updates import Sparse, Ternary


@pytest.fixture
def run(tmp_path):
    def invoke(data: bytes, *options: str):
        path = tmp_path / "message"
        path.write_bytes(data)
        return CliRunner().invoke(app, ["inspect", str(path), *options])

    return invoke


def test_inspect_prints_parts_density_and_the_entropy_bound(run):
    data = fedtern.compress(np.random.default_rng(0).standard_normal((100, 1000)), p=0.01)
    result = run(data)
    assert result.exit_code == 0
    assert f"array, {len(data):,} bytes" in result.output
    for text in ("shape: (100, 1000)", "signs", "density 1.0000%", "entropy bound 9.079"):
        assert text in result.output


def test_inspect_json_parts_add_up_to_the_message(run):
    data = fedtern.compress(np.random.default_rng(0).standard_normal(5000), p=0.1)
    found = json.loads(run(data, "--json").output.splitlines()[-1])
    assert sum(found["parts"].values()) == found["nbytes"] == len(data)
    assert found["nonzeros"] == 500
    assert found["density"] == 0.1


@pytest.mark.parametrize("name", METHODS)
def test_parts_of_every_message_add_up_for_every_method(name):
    server, clients = pair(METHODS[name])
    messages = [clients[0].send(trained(clients[0], 0)).data]
    server.receive(0, messages[0])
    messages += [server.finish_round(cohort).data for cohort in (None, [1, 2])]
    messages += [server.catch_up(1, since).data for since in (-1, 0, 1, 2)]
    for data in messages:
        for layout in (None, LAYOUT):
            found = inspect(data, layout)
            assert sum(nbytes for _, nbytes in found.parts) == len(data)
            assert all(nbytes >= 0 for _, nbytes in found.parts)


@pytest.mark.parametrize("scope", ["model", "tensor"])
@pytest.mark.parametrize("codec", ["golomb", "adaptive"])
def test_parts_of_adaptive_positions_and_steps_add_up(scope, codec):
    layout = Layout(("w", "b"), ((40, 50), (40,)))
    rng = np.random.default_rng(0)
    start = (100 * rng.standard_normal(layout.size)).astype(np.float32)
    method = fedtern.stc(0.1, 0.1, scope=scope, codec=codec, magnitudes="powers")
    server = fedtern.Server(start, method, layout, cap=None)  # the last update is much larger
    client = fedtern.Client(0, method, layout, start)
    messages = []
    for scale in (1e-3, 1e-3, 1.0):
        change = scale * rng.standard_normal(layout.size) * np.tile([3, 1], layout.size // 2)
        messages.append(client.send(client.weights + change.astype(np.float32)).data)
        server.receive(0, messages[-1])
        messages.append(server.finish_round().data)
        client.receive(messages[-1])
    messages += [server.catch_up(1, since).data for since in (-1, 0, 1, 2, 3)]
    for data in messages:
        for known in (None, layout):
            found = inspect(data, known)
            assert sum(nbytes for _, nbytes in found.parts) == len(data)
            assert all(nbytes >= 0 for _, nbytes in found.parts)
    broadcast = inspect(messages[1], layout)
    assert {"exponents", "signs", "coding"} <= dict(broadcast.parts).keys()
    assert "uniformly random positions need" in broadcast.facts["bits per position"]
    assert "low parts of exact weights" in dict(inspect(messages[6], layout).parts)


@pytest.mark.parametrize(
    "plain", [SparseCodec(), TernaryCodec(), BinaryCodec("tensor"), PaletteCodec()]
)
def test_inspect_compares_adaptive_positions_with_random_ones(plain):
    layout = Layout(("w",), ((40, 50),))
    indices = np.arange(0, layout.size, 25)  # two columns
    update = Ternary(
        layout.size, indices, np.ones(80, bool), np.ones(1, np.float32), layout.segments("tensor")
    )
    if plain.id in (SparseCodec.id, PaletteCodec.id):
        update = Sparse(layout.size, indices, np.ones(80, np.float32))
    payload = AdaptiveCodec(plain).encode(update, layout)
    assert payload[0] == AdaptiveCodec.id
    data = seal(UPLOAD, bytes(13), payload)
    for known in (None, layout):
        found = inspect(data, known)
        assert sum(nbytes for _, nbytes in found.parts) == len(data)
    bits, ideal = re.findall(r"\d+\.\d+", found.facts["bits per position"])
    assert float(bits) < float(ideal)
    with pytest.raises(DecodeError, match="adaptive positions"):
        inspect(seal(UPLOAD, bytes(13), b"\x12\5"), layout)


@pytest.mark.parametrize("initial", ["exact", "float16", "int8"])
@pytest.mark.parametrize("name", ["stc", "signsgd", "sgd"])
def test_parts_of_messages_with_carried_tensors_and_initial_models_add_up(run, name, initial):
    layout = Layout(("w", "b"), ((4, 6), (4,)), (Carried("mean", (5,), "float32"),))
    zeros = {"mean": np.zeros(5, np.float32)}
    start = np.linspace(-1, 1, layout.size, dtype=np.float32)
    server = Server(start, METHODS[name], layout, carried=zeros, initial=initial)
    client = Client(0, METHODS[name], layout)
    messages = [server.catch_up(0, -1).data]
    client.receive(messages[0])
    ones = {"mean": np.full(5, 0.1, np.float32)}
    messages.append(client.send(client.weights + start, carried=ones).data)
    server.receive(0, messages[-1])
    messages += [
        server.finish_round().data,
        server.catch_up(0, 0).data,
        server.catch_up(0, -1).data,
    ]
    for data in messages:
        result = run(data, "--size", "4x6,4", "--carried", "float32:5", "--json")
        found = json.loads(result.output.splitlines()[-1])
        assert sum(found["parts"].values()) == len(data)
        if found["facts"].get("catch-up") != "replayed broadcasts":
            # float16 holds the initial zeros
            assert found["parts"]["carried tensors"] == (11 if data is messages[0] else 21)
    assert inspect(messages[1], layout).facts["carried tensors"] == "mean"
    shown = run(messages[0], "--size", "4x6,4", "--carried", "float32:5").output
    expected = "weights" if initial == "exact" else f"initial model ({initial})"
    assert expected in shown


def test_inspect_refuses_unknown_carried_tensors(run):
    data = fedtern.compress(np.ones(3), p=1)
    assert "dtypes are float16" in " ".join(
        run(data, "--size", "3", "--carried", "text:3").output.split()
    )
    assert "pass --size" in run(data, "--carried", "int64:1").output


def test_inspect_shows_counted_clients_and_next_cohort_and_asks_for_size(run):
    server, clients = pair(METHODS["stc-tensor"])
    server.receive(0, clients[0].send(trained(clients[0], 0)).data)
    data = server.finish_round(next_cohort=[1, 2]).data
    output = run(data).output
    for text in ("counted: 0", "next cohort: 1, 2", "round: 0", "--size"):
        assert text in output
    assert "density" in run(data, "--size", "24,4,15").output


def test_inspect_reports_bad_input_in_one_line(run):
    result = run(b"something else")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "not a fedtern message: it starts with 0x73" in result.output
    result = CliRunner().invoke(app, ["inspect", "/nowhere"])
    assert result.output == "/nowhere: No such file or directory\n"
    assert "expected numbers like 7840,10" in run(b"", "--size", "many").output
    message = fedtern.compress(np.ones(100), p=0.1)
    assert "99999999999999999999 parameters are too many" in run(message, "--size", "9" * 20).output


def test_version_option_prints_the_version():
    command = [sys.executable, "-m", "fedtern", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(
        rf"fedtern {re.escape(fedtern.__version__)}, kernels: (native|numpy) .*\n", result.stdout
    )


def test_without_typer_the_command_prints_how_to_install_it():
    code = "import sys; sys.modules['typer'] = None\nfrom fedtern.__main__ import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stderr == f"the command line needs typer: {install_command('cli')}\n"


def test_without_torch_inspect_works_and_training_prints_how_to_install_it(tmp_path):
    path = tmp_path / "message"
    path.write_bytes(fedtern.compress(np.ones(3, np.float32)))
    code = "import sys; sys.modules['torch'] = None\nfrom fedtern.__main__ import main; main()"

    def run(*arguments: str):
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "array" in run("inspect", str(path)).stdout
    for command, extra in (("run cnn-kws --method stc", "torch"), ("reproduce --list", "paper")):
        refused = run(*command.split())
        name = command.partition(" ")[0]
        assert refused.returncode == 1
        assert refused.stderr == (
            f"fedtern: fedtern {name} needs torch, which is not installed:"
            f" {install_command(extra)}\n"
        )
    assert "Not installed: needs the extra 'paper'" in run("--help").stdout


def test_list_of_commands_shows_the_first_sentence_of_each_commands_help():
    pytest.importorskip("torch")
    group = typer.main.get_command(app)
    context = group.make_context("fedtern", [], resilient_parsing=True)
    for name in group.list_commands(context):
        listed = group.get_command(context, name).get_short_help_str(200)
        _, command, _ = group.resolve_command(context, [name])
        assert listed == command.get_short_help_str(200), name


def test_inspect_shows_the_cohort_of_a_notice(run):
    server, _ = pair(METHODS["stc"])
    cohorts = {None: "all clients", frozenset({3, 1}): "1, 3", frozenset(): "none"}
    for cohort, expected in cohorts.items():
        result = run(CohortNotice.seal(server.stamp, 7, cohort, server.terms))
        assert "cohort notice, " in result.output
        assert "round: 7" in result.output
        assert f"cohort: {expected}" in result.output


@pytest.mark.parametrize("command", [["run"], ["serve"], ["demo", "mqtt"]])
def test_help_shows_defaults_without_markup(command):
    pytest.importorskip("torch")
    shown = CliRunner().invoke(app, [*command, "--help"]).output
    assert "[default: " in shown
    assert "\\[" not in shown


def test_serve_has_no_options_of_the_simulation():
    pytest.importorskip("torch")
    shown = CliRunner().invoke(app, ["serve", "--workers", "2"])
    assert shown.exit_code == 2
