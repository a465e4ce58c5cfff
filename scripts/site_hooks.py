"""Hooks of MkDocs: what the site adds to the pages in docs/.

- Links to files of the repository outside docs/ lead to pages of the site with their contents.
- The files in ``PROJECT``, the notebooks and the help of the command line become pages.
- Mermaid diagrams become SVG graphs or tables: the site loads no scripts from other hosts.
- Pages that mkdocs.yml does not list are added to the section of their folder.
"""

from __future__ import annotations

import json
import posixpath
import re
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PROJECT = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "RELEASING.md": "project/releasing.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
}
SECTIONS = {
    "": "Concepts",
    "concepts": "Concepts",
    "how-to": "How-to guides",
    "reference": "Reference",
    "tutorials": "Tutorials",
}  # by folder
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".mjs": "js", ".json": "json", ".yml": "yaml"}
LONGEST = 60_000  # characters of a file that a page shows

FENCE = re.compile(r"(^ *```.*?^ *```$)", flags=re.MULTILINE | re.DOTALL)
BUTTON = re.compile(r"^(\[[^\]]+\]\([^)]+\))$", flags=re.MULTILINE)  # a link on its own line
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")

_origins: dict[str, str] = {}  # path in the repository of each page that is not in docs/


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add pages that the navigation does not list."""
    nav: list[dict[str, Any]] = config.nav or []
    listed = set(re.findall(r"[\w/-]+\.md", json.dumps(nav)))
    sections = {title: pages for entry in nav for title, pages in entry.items()}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        folder = name.rpartition("/")[0]
        if name not in listed and folder in SECTIONS:
            sections[SECTIONS[folder]].append(name)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages for files outside docs/ that pages link to."""
    _origins.clear()
    made = {"reference/command-line.md": command_line_page()}
    for name, page in PROJECT.items():
        _origins[page] = name
        made[page] = (ROOT / name).read_text(encoding="utf-8")
    for file in files:
        if file.src_uri.endswith(".ipynb"):
            page = file.src_uri.removesuffix(".ipynb") + ".md"
            made[page] = notebook_page(ROOT / "docs" / file.src_uri)
    documents = {f.src_uri: f.content_string for f in files.documentation_pages()} | made
    waiting = list(documents.items())
    while waiting:
        page, text = waiting.pop()
        for link in links(text):
            target = repository_path(page, link)
            uri = site_path(target) if target else None
            if target and uri and uri.startswith("source/") and uri not in documents:
                _origins[uri] = target
                documents[uri] = made[uri] = source_page(target)
                if target.endswith(".md"):
                    waiting.append((uri, made[uri]))
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links to files outside docs/, and draw diagrams."""
    name = page.file.src_uri
    if name == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
        markdown = BUTTON.sub(r"\1{ .md-button }", markdown)

    def rewrite(match: re.Match[str]) -> str:
        link = match.group()
        target = repository_path(name, link)
        if target is None:
            return link
        uri = site_path(target)
        anchor = link.partition("#")[2]
        path = posixpath.relpath(uri, posixpath.dirname(name) or ".")
        return f"{path}#{anchor}" if anchor else path

    def replace(part: str) -> str:
        if not part.lstrip().startswith("```"):
            return LINK.sub(rewrite, part)
        kind = part.lstrip().removeprefix("```").partition("\n")[0].strip()
        return draw(part) if kind == "mermaid" else part

    return "".join(replace(part) for part in FENCE.split(markdown))


def links(text: str) -> Iterator[str]:
    """Yield the links of a page outside its code blocks."""
    for match in LINK.finditer(FENCE.sub("", text)):
        yield match.group()


def repository_path(page: str, link: str) -> str | None:
    """Return the file in the repository that a link leads to; None for URLs and anchors."""
    path = link.partition("#")[0]
    if not path or re.match(r"\w+:", path):
        return None
    origin = _origins.get(page, f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))


def site_path(target: str) -> str:
    """Return the path in the site of a file of the repository."""
    if target == "README.md":
        return "index.md"
    if target in PROJECT:
        return PROJECT[target]
    if target.startswith("docs/") and not (ROOT / target).is_dir():
        return re.sub(r"\.ipynb$", ".md", target.removeprefix("docs/"))
    return f"source/{target}" if target.endswith(".md") else f"source/{target}.md"


def source_page(target: str) -> str:
    """Return a page that shows a file, or lists a directory."""
    path = ROOT / target
    head = "---\nsearch:\n  exclude: true\n---\n\n"
    if path.is_dir():
        names = sorted(child.name for child in path.iterdir() if not child.name.startswith("__"))
        return f"{head}# {target}\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return head + text
    cut = f"\nThe file has {len(text):,} characters; this is its start.\n"
    cut = cut if len(text) > LONGEST else ""
    text = text[:LONGEST].replace("\t", "    ")
    fence = f"````{LANGUAGES.get(path.suffix, 'text')}"
    return f"{head}# {target}\n{cut}\n{fence}\n{text}\n````\n"


def notebook_page(path: Path) -> str:
    """Return the cells of a notebook and their outputs as a page."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            text = "".join(output.get("text", data.get("text/plain", "")))
            if "image/svg+xml" in data:
                svg = b64encode("".join(data["image/svg+xml"]).encode()).decode()
                parts.append(f'<img class="svg" alt="Plot" src="data:image/svg+xml;base64,{svg}">')
            elif text.strip():
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def command_line_page() -> str:
    """Return the help of all commands as a page."""
    import typer

    from fedtern.cli import app

    def help_of(command: Any, name: str) -> Iterator[str]:
        context = command.make_context(name, [], resilient_parsing=True, terminal_width=80)
        yield f"## `{name}`\n\n```text\n{command.get_help(context)}\n```\n"
        if hasattr(command, "list_commands"):
            for child in command.list_commands(context):
                yield from help_of(command.resolve_command(context, [child])[1], f"{name} {child}")

    return "# Command line\n\n" + "\n".join(help_of(typer.main.get_command(app), "fedtern"))


def draw(block: str) -> str:
    """Return a diagram of Mermaid as SVG or as a table."""
    lines = [line.strip() for line in block.strip().splitlines()[1:-1]]
    if lines[0].startswith("stateDiagram"):
        return transitions(lines[1:])
    edges = [tuple(line.split(" --> ")) for line in lines[1:]]
    return graph([(a, b) for a, b in edges])


def transitions(lines: list[str]) -> str:
    """Return the transitions of a state diagram as a table."""
    rows = []
    for line in lines:
        arrow, _, event = line.partition(": ")
        before, after = arrow.split(" --> ")
        rows.append(f"| {name_of(before, 'start')} | {event} | {name_of(after, 'end')} |")
    return "\n".join(["| state | event | next state |", "|---|---|---|", *rows])


def name_of(state: str, outside: str) -> str:
    """Return a state in a table; ``[*]`` is outside of the diagram."""
    return outside if state == "[*]" else f"`{state}`"


def graph(edges: list[tuple[str, str]]) -> str:
    """Return a graph as SVG: each node stands above all nodes that it points to."""
    names = sorted({name for edge in edges for name in edge})
    height: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in height:
            height[name] = max((level(b) + 1 for a, b in edges if a == name), default=0)
        return height[name]

    rows: dict[int, list[str]] = {}
    for name in names:
        rows.setdefault(level(name), []).append(name)
    top, width, x, y = max(rows), 640, {}, {}
    for row, members in rows.items():
        for i, name in enumerate(members):
            x[name], y[name] = width * (i + 0.5) / len(members), 30 + 70 * (top - row)
    parts = [
        f'<path d="M{x[a]:.0f},{y[a] + 15} C{x[a]:.0f},{y[a] + 45} {x[b]:.0f},{y[b] - 45}'
        f' {x[b]:.0f},{y[b] - 19}" marker-end="url(#head)"/>'
        for a, b in edges
    ]
    for name in names:
        half = 6 + 4.4 * len(name)
        parts.append(
            f'<rect x="{x[name] - half:.0f}" y="{y[name] - 15}" width="{2 * half:.0f}" height="30"'
            f' rx="6"/><text x="{x[name]:.0f}" y="{y[name] + 5}">{escape(name)}</text>'
        )
    head = '<marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7"'
    head += ' orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker>'
    return (
        f'<svg class="diagram" role="img" aria-label="Graph" viewBox="0 0 {width} {60 + 70 * top}"'
        f' xmlns="http://www.w3.org/2000/svg"><defs>{head}</defs>{"".join(parts)}</svg>'
    )
