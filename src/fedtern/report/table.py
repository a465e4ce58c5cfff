"""The tables of the page. Every string that comes from a run is escaped here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from typing import Any

from fedtern.report.formatting import digits, percent, plain
from fedtern.report.groups import Group
from fedtern.report.results import Result, flatten, results
from fedtern.report.styles import style
from fedtern.runs.recorded_run import Run

_HEAD = """
<thead>
<tr><th scope="col" rowspan="2">Method</th><th scope="col" rowspan="2">Seed</th>
<th scope="colgroup" colspan="2">Accuracy</th><th scope="col" rowspan="2">Iterations</th>
<th scope="colgroup" colspan="3">Sent up, a client</th>
<th scope="colgroup" colspan="3">Sent down, a client</th>
<th scope="col" rowspan="2">Seconds</th></tr>
<tr><th scope="col">final</th><th scope="col">best</th>
<th scope="col">MB</th><th scope="col">paper's MB</th><th scope="col">dense ÷ sent</th>
<th scope="col">MB</th><th scope="col">paper's MB</th><th scope="col">dense ÷ sent</th></tr>
</thead>
"""


def results_table(groups: Sequence[Group]) -> str:
    """One row for each run."""
    colours = {group.label: style(rank).colour for rank, group in enumerate(groups)}
    rows = "\n".join(_row(row, colours[row.method]) for row in results(groups))
    return (
        '<table class="results"><caption id="results-caption">Every run at its latest evaluation.'
        " Megabytes are those of encoded messages as the other side decoded them: the mean over"
        " each round's clients, summed over rounds, catch-up included; the paper's are its analytic"
        " count of the same. Dense is one way, uncompressed, at every iteration.</caption>"
        f"{_HEAD}<tbody>\n{rows}\n</tbody></table>"
    )


def wire_table(groups: Sequence[Group]) -> str:
    """What networks have carried besides messages, of runs that had one; nothing if none had."""
    found = [row for row in results(groups) if row.wire_up_bytes is not None]
    if not found:
        return ""
    rows = "\n".join(
        f'<tr><th scope="row">{escape(row.method)}</th>'
        + "".join(
            _cell(_megabytes(nbytes))
            for nbytes in (
                *(row.total_up_bytes, row.wire_up_bytes),
                *(row.total_down_bytes, row.wire_down_bytes),
            )
        )
        + "</tr>"
        for row in found
    )
    return (
        '<table class="results wire"><caption>On the wire: what Flower has counted between the'
        " SuperLink and all nodes of a run, beside the messages in it (payload). Headers of HTTP"
        " and TLS are in neither.</caption>"
        '<thead><tr><th scope="col">Method</th><th scope="col">MB up, payload</th>'
        '<th scope="col">on the wire</th><th scope="col">MB down, payload</th>'
        f'<th scope="col">on the wire</th></tr></thead><tbody>\n{rows}\n</tbody></table>'
    )


def _row(row: Result, colour: str) -> str:
    key = f'<span class="key" style="background:{colour}" aria-hidden="true"></span>'
    name = f'<th scope="row">{key}{escape(row.method)}</th>'
    seed = _cell("–" if row.seed is None else plain(row.seed))
    if row.iterations is None:
        return f'<tr>{name}{seed}<td colspan="10" class="none">no evaluation yet</td></tr>'
    cells = [
        percent(row.final_accuracy),
        percent(row.best_accuracy),
        _progress(row),
        *(_megabytes(row.up_bytes), _megabytes(row.up_bytes_paper), _times(row.up_ratio)),
        *(_megabytes(row.down_bytes), _megabytes(row.down_bytes_paper), _times(row.down_ratio)),
        digits(row.seconds),
    ]
    return f"<tr>{name}{seed}{''.join(map(_cell, cells))}</tr>"


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _progress(row: Result) -> str:
    done, planned = row.iterations or 0, row.planned_iterations
    return f"{done:,.0f} of {planned:,.0f}" if planned and done < planned else f"{done:,.0f}"


def _megabytes(nbytes: float | None) -> str:
    return digits(None if nbytes is None else nbytes / 1e6)


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{digits(ratio)} ×"


def details(groups: Sequence[Group]) -> str:
    """How each run was configured and, where it says so, the line that repeats it."""
    return "\n".join(_details(run, group.label) for group in groups for run in group.runs)


def _details(run: Run, label: str) -> str:
    seed = run.config.get("seed")
    name = label if seed is None else f"{label}, seed {plain(seed)}"
    settings = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(_written(value))}</td></tr>'
        for key, value in flatten(run.config)
        if key != "command"
    )
    return (
        f"<details><summary>{escape(name)} <code>{escape(run.digest)}</code></summary>"
        f"{_command(run.config.get('command'))}"
        f'<table class="settings"><caption>Configuration of {escape(str(run.path))}</caption>'
        f"<tbody>{settings}</tbody></table></details>"
    )


def _command(command: Any) -> str:
    if not command:
        return ""
    line = shlex.join(map(str, command)) if isinstance(command, list) else str(command)
    return (
        '<p class="command"><span>To repeat it:</span>'
        ' <button type="button" data-copy>Copy</button></p>'
        f"<pre><code>{escape(line)}</code></pre>"
    )


def _written(value: Any) -> str:
    """A setting in full: here, unlike in a label, no digit is left out."""
    return repr(value) if isinstance(value, float) else plain(value)
