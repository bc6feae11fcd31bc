"""Links between pages work, including headings, and tests and files named on a page exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import attacks_page

pytestmark = pytest.mark.req("ARCH")

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
_FILE = re.compile(r"`((?:src|tests|docs|examples|bench)/[\w./-]+\.\w+)`")


def prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def anchor(heading: str) -> str:
    """As on GitHub: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {anchor(heading) for heading in _HEADING.findall(prose(path))}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_work(page: Path) -> None:
    broken = []
    for link in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, fragment = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (fragment and fragment not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_named_tests_and_files_exist(page: Path) -> None:
    text = (
        "" if page.name == "conformance.md" else prose(page)
    )  # generated from the tests, with paths relative to tests/
    for name, test in _TEST.findall(text):
        source = ROOT / name
        assert source.exists(), name
        assert not test or f"def {test}(" in source.read_text(encoding="utf-8"), f"{name}::{test}"
    for name in _FILE.findall(text):
        assert (ROOT / name).exists(), name


def test_every_page_is_linked_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(index))}
    assert {page for page in PAGES if page != index} - linked == set()


def test_anchor_is_built_as_on_github() -> None:
    assert anchor("The same on PostgreSQL") == "the-same-on-postgresql"
    assert anchor("0001: Facts, a `state`") == "0001-facts-a-state"


def test_attacks_page_is_current() -> None:
    assert attacks_page.PAGE.read_text(encoding="utf-8") == attacks_page.render(), (
        "run python -m tests.docs.attacks_page --write"
    )
