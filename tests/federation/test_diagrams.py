"""The diagram in the documentation is the transition table."""

from __future__ import annotations

import runpy
from pathlib import Path

from fedtern.federation.round_controller import TRANSITIONS

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts/diagrams"))
PAGE = (ROOT / "docs/architecture.md").read_text()


def test_the_page_contains_the_generated_diagram():
    assert SCRIPT["generated"]() in PAGE


def test_writing_the_diagram_again_does_not_change_the_page():
    assert SCRIPT["replaced"](PAGE) == PAGE


def test_the_diagram_has_an_arrow_for_each_transition():
    arrows = {}
    for line in SCRIPT["state_diagram"]().splitlines():
        arrow, _, label = line.strip().partition(": ")
        arrows[arrow] = label.split(" or ")
    for source, events in TRANSITIONS.items():
        for event, target in events.items():
            label = event.name.lower().replace("_", " ")
            assert label in arrows[f"{source.name} --> {target.name}"]
