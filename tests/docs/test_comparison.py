"""The README's comparison table agrees with docs/comparison.md, where every cell has a source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.req("HF-5")

ROOT = Path(__file__).parents[2]
_SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def claims() -> dict[str, list[list[str]]]:
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    return {name: rows(body) for name, body in _SECTION.findall(page)}


def test_every_claim_about_another_project_has_a_source() -> None:
    tables = claims()
    ours = [row[0] for row in tables.pop("Holdfast")]
    assert len(tables) >= 8
    for name, table in tables.items():
        assert [row[0] for row in table] == ours, name
        assert not [row[0] for row in table if "](https://" not in row[2]], name


def test_readme_table_matches_comparison_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Comparison")[2].partition("\n## ")[0]
    head = next(line for line in readme.splitlines() if line.startswith("|"))
    names = [cell.split()[0] for cell in head.strip("|").split("|")[1:]]
    tables = claims()
    table = rows(readme)
    for column, name in enumerate(names, start=1):
        assert [[row[0], row[column]] for row in table] == [row[:2] for row in tables[name]], name
