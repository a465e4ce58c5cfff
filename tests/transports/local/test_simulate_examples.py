"""The programs in examples/simulate run, and are short."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parents[3] / "examples" / "simulate"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cnn", "iteration 200: accuracy"),
        ("regression", "iteration 300: rmse 0."),
        ("text", "perplexity after training: "),
        ("loaders", "iteration 300: "),
        ("early_stopping", "best accuracy 9"),
    ],
)
def test_a_program_of_under_forty_lines_trains(name, expected, capsys, monkeypatch, tmp_path):
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) < 40
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    torch.manual_seed(0)
    runpy.run_path(str(path))
    assert expected in capsys.readouterr().out


def test_every_program_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "cnn", "regression", "text", "loaders", "early_stopping",
    }  # fmt: skip
