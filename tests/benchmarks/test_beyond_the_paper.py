"""The page about stc_plus agrees with the recorded runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "beyond-the-paper.md"


def test_the_page_has_every_line_that_the_script_prints():
    script = ROOT / "benchmarks" / "beyond_the_paper.py"
    done = subprocess.run(
        [sys.executable, script, "--no-picture"], check=True, capture_output=True, text=True
    )
    lines = [line.replace("### ", "## ") for line in done.stdout.splitlines() if line]
    assert len(lines) > 30
    assert set(lines) <= set(PAGE.read_text().splitlines())
