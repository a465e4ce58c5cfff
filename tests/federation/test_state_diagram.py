"""The diagram in the documentation is the transition table."""

from __future__ import annotations

import runpy
from pathlib import Path

from fedtern.federation.round_controller import TRANSITIONS, Event, RoundState

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts/state-diagram"))
PAGE = (ROOT / "docs/architecture.md").read_text()


def test_the_diagram_on_the_page_is_up_to_date():
    assert SCRIPT["diagram"]() in PAGE
    assert SCRIPT["redrawn"](PAGE) == PAGE, "run scripts/state-diagram"


def test_the_diagram_has_an_arrow_for_each_transition():
    arrows = {}
    for line in SCRIPT["diagram"]().splitlines():
        arrow, _, label = line.strip().partition(": ")
        arrows[arrow] = label.split(" or ")
    for source, events in TRANSITIONS.items():
        for event, target in events.items():
            label = event.name.lower().replace("_", " ")
            assert label in arrows[f"{source.name} --> {target.name}"]


def test_the_page_describes_each_state_and_each_event():
    for member in (*RoundState, *Event):
        assert f"| `{member.name}` | {member.value} |" in PAGE
