"""Links in the documentation lead to files and headings that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```.*?^\1```$", flags=re.MULTILINE | re.DOTALL)


def text_of(page: Path) -> str:
    """Text of a page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(text_of(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_existing_files_and_headings(page):
    assert list(broken_links(page)) == []


def test_a_missing_file_and_a_missing_heading_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Good\n[a](#good) [b](#bad) [c](none.md) [d](page.md) [e](https://x.y)\n")
    assert list(broken_links(page)) == ["#bad", "none.md"]


def test_every_page_is_linked_from_the_index():
    index = ROOT / "docs" / "index.md"
    linked = {
        (index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(text_of(index))
    }
    pages = {page for page in (ROOT / "docs").glob("**/*.md") if "results" not in page.parts}
    assert pages - {index} <= linked
