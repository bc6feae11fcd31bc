"""Links between pages work, including headings, and tests and files named on a page exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import attacks_page

pytestmark = pytest.mark.req("ARCH")

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "adr").glob("0*.md"))

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


def linked_from(page: Path) -> list[Path]:
    return [(page.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(page))]


def test_index_has_five_groups_and_names_every_page_once() -> None:
    index = ROOT / "docs" / "index.md"
    assert sorted(linked_from(index)) == [page for page in PAGES if page != index and page not in DECISIONS]
    assert len(re.findall(r"^## ", prose(index), re.MULTILINE)) == 5


def test_every_decision_is_listed() -> None:
    assert set(DECISIONS) - set(linked_from(ROOT / "docs" / "adr" / "README.md")) == set()


def test_contributor_guide_names_existing_files() -> None:
    """By the end of their path, relative to any folder."""
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = {
        name for code in re.findall(r"`([^`<]+)`", guide) for name in re.findall(r"[\w./]+\.(?:py|sql|yml)\b", code)
    }
    files = [path.as_posix() for folder in ("src", "tests", "tools", "docs") for path in (ROOT / folder).rglob("*.*")]
    files += [path.as_posix() for path in ROOT.glob("*.*")]
    assert sorted(name for name in named if not any(path.endswith(f"/{name}") for path in files)) == []


def test_anchor_is_built_as_on_github() -> None:
    assert anchor("The same on PostgreSQL") == "the-same-on-postgresql"
    assert anchor("0001: Facts, a `state`") == "0001-facts-a-state"


def test_attacks_page_is_current() -> None:
    assert attacks_page.PAGE.read_text(encoding="utf-8") == attacks_page.render(), (
        "run python -m tests.docs.attacks_page --write"
    )


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [path.name[:4] for path in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))]
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
