"""`holdfast move`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Holdfast, document, error_of

pytestmark = pytest.mark.req("HF-1")


def test_estimate_move_and_what_comes_after(bare: Holdfast, sqlite_url: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/moved.db"
    assert bare("enqueue", "mail", "{}", "--url", sqlite_url).exit_code == 0
    estimate = document(bare("move", sqlite_url, target, "--dry-run", "--json"))
    assert (estimate["rows"]["job"], estimate["target_exists"]) == (1, False)
    result = document(bare("move", sqlite_url, target, "--json"))
    assert (result["rows"]["job"], result["tenants"], result["flaws"]) == (1, {"default": 1}, [])
    again = bare("move", sqlite_url, f"sqlite:///{tmp_path}/other.db", "--json")
    assert error_of(again)["code"] == "database_moved"
    # The old URL leads to the new database.
    assert bare("enqueue", "mail", "{}", "--url", sqlite_url).exit_code == 0
    assert len(document(bare("jobs", "list", "--url", target, "--json"))) == 2


def test_nothing_to_resume_or_give_up(bare: Holdfast, sqlite_url: str, tmp_path: Path) -> None:
    for option in ("--resume", "--abort"):
        refused = bare("move", sqlite_url, f"sqlite:///{tmp_path}/moved.db", option, "--json")
        assert error_of(refused)["code"] == "move_unknown"
