"""The code on the how-to pages works."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from checks import pair, trained
from fedtern import METHODS

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def test_the_code_of_the_page_adds_a_working_method(capsys):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    page = (PAGES / "add-a-method.md").read_text()
    module = ModuleType("page")
    sys.modules["page"] = module  # dataclasses look up their module
    names = vars(module)
    try:
        for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
            exec(compile(block, "add-a-method.md", "exec"), names)
        printed = capsys.readouterr().out
        assert re.fullmatch(r"\d\d%, \d+ times fewer bytes up\n", printed)
        accuracy, times = map(int, re.findall(r"\d+", printed))
        assert accuracy > 60
        assert times > 5
        recipe = METHODS["relative"]
        assert recipe.publication.cite == "Doe, 2026"
        assert names["experiment"].make_method() == recipe(share=0.8)
        follow(recipe(share=0.9))
    finally:
        METHODS.pop("relative", None)
        del sys.modules["page"]


def follow(method) -> None:
    """Check that all replicas are equal after some rounds of partial participation."""
    server, clients = pair(method)
    for t in range(6):
        for i in (t % 3, (t + 1) % 3):
            clients[i].receive(server.catch_up(i, clients[i].round).data)
            server.receive(i, clients[i].send(trained(clients[i], t)).data)
        server.finish_round()
    for i, client in enumerate(clients):
        client.receive(server.catch_up(i, client.round).data)
        assert np.array_equal(client.weights, server.weights)
