"""`holdfast migrate`, its check and its script."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast.features.assembly import open_store
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.direct_sql import open_by_hand

pytestmark = pytest.mark.req("SC-1")


@pytest.fixture(params=["new_sqlite_url", "empty_postgres_url"])
def empty_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    return url


def test_empty_database_is_migrated_to_current_schema(bare: Holdfast, empty_url: str) -> None:
    pending = bare("migrate", "--check", "--url", empty_url, "--json")
    assert pending.exit_code == 1
    names = document(pending)["pending"]
    assert names
    assert names[-1].endswith(".later")
    assert document(pending)["applied"] == []

    made = bare("migrate", "--url", empty_url)
    assert made.exit_code == 0
    assert made.stdout.splitlines() == [f"applied {name}" for name in names]

    checked = bare("migrate", "--check", "--url", empty_url, "--json")
    assert checked.exit_code == 0
    assert document(checked) == {"current": True, "applied": sorted(names), "pending": [], "unknown": []}

    again = bare("migrate", "--url", empty_url, "--json")
    assert (again.exit_code, document(again)["migrated"]) == (0, [])


def test_check_creates_no_file(bare: Holdfast, new_sqlite_url: str, tmp_path: Path) -> None:
    result = bare("migrate", "--check", "--url", new_sqlite_url)
    assert result.exit_code == 1
    assert result.stdout.startswith("pending 0001")
    assert list(tmp_path.iterdir()) == []


def test_newer_database_is_refused(bare: Holdfast, new_sqlite_url: str) -> None:
    bare("migrate", "--url", new_sqlite_url)
    with closing(sqlite3.connect(new_sqlite_url.removeprefix("sqlite:///"))) as connection:
        connection.execute("INSERT INTO holdfast_migration (name, digest) VALUES ('9999_future', 'x')")
        connection.commit()
    checked = bare("migrate", "--check", "--url", new_sqlite_url, "--json")
    assert checked.exit_code == 1
    assert document(checked)["unknown"] == ["9999_future"]
    refused = bare("migrate", "--url", new_sqlite_url, "--json")
    assert (refused.exit_code, error_of(refused)["code"]) == (1, "schema_newer")


def test_database_of_a_development_version_is_refused(bare: Holdfast, new_sqlite_url: str) -> None:
    bare("migrate", "--url", new_sqlite_url)
    with closing(sqlite3.connect(new_sqlite_url.removeprefix("sqlite:///"))) as connection:
        connection.execute("UPDATE holdfast_migration SET name = '0001_engine' WHERE name = '0001_initial'")
        connection.commit()
    checked = bare("migrate", "--check", "--url", new_sqlite_url)
    assert (checked.exit_code, "development version" in checked.stderr) == (1, True)
    refused = bare("migrate", "--url", new_sqlite_url, "--json")
    assert (refused.exit_code, error_of(refused)["code"]) == (1, "schema_unsupported")


def test_printed_script_creates_the_same_schema(bare: Holdfast, empty_postgres_url: str) -> None:
    """It is printed without a server, to be applied with other tools."""
    printed = bare("migrate", "--sql", "--url", "postgresql://127.0.0.1:1/none")
    assert printed.exit_code == 0
    assert printed.stderr == ""
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        connection.execute(printed.stdout.encode())
    with closing(open_store(empty_postgres_url)) as store:
        assert store.schema().current


def test_script_is_printed_as_json(bare: Holdfast, new_sqlite_url: str) -> None:
    script = document(bare("migrate", "--sql", "--url", new_sqlite_url, "--json"))["sql"]
    assert "CREATE TABLE holdfast_job " in script


@pytest.mark.parametrize("options", [("--sql", "--check"), ("--plan", "--to", "0.1"), ("--check", "--plan")])
def test_ways_to_migrate_exclude_each_other(bare: Holdfast, new_sqlite_url: str, options: tuple[str, ...]) -> None:
    assert bare("migrate", *options, "--url", new_sqlite_url).exit_code == 2


def test_plan_names_each_step_and_changes_nothing(bare: Holdfast, empty_url: str, tmp_path: Path) -> None:
    if empty_url.startswith("sqlite:"):
        assert bare("migrate", "--plan", "--url", empty_url).stderr == "Nothing would run.\n"
        assert list(tmp_path.iterdir()) == []
    bare("migrate", "--url", empty_url)
    assert document(bare("migrate", "--plan", "--url", empty_url, "--json")) == {"steps": []}
    with closing(open_by_hand(empty_url)) as by_hand:
        by_hand.execute("update migration set digest = 'older' where name = 'code'")
        table = "" if empty_url.startswith("sqlite:") else " on job_state"
        by_hand.execute(f"drop trigger record_transition{table}")
    planned = bare("migrate", "--plan", "--url", empty_url)
    assert "record_transition" in planned.stdout
    assert "Nothing was changed." in planned.stderr
    steps = document(bare("migrate", "--plan", "--url", empty_url, "--json"))["steps"]
    if not empty_url.startswith("sqlite:"):  # only what differs
        assert [step["lock"] for step in steps] == ["SHARE ROW EXCLUSIVE on job_state"] * 2
    assert bare("migrate", "--check", "--url", empty_url).exit_code == 1


def test_way_back_says_what_to_do_next(bare: Holdfast, empty_url: str) -> None:
    bare("migrate", "--url", empty_url)
    result = bare("migrate", "--to", "0.1", "--url", empty_url)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].endswith(".down")
    assert "Install that release" in result.stderr
    refused = bare("migrate", "--to", "7", "--url", empty_url, "--json")
    assert (refused.exit_code, error_of(refused)["code"]) == (2, "unknown_release")


def test_uninstall_asks_first(bare: Holdfast, empty_url: str) -> None:
    absent = bare("uninstall", "--url", empty_url)
    assert absent.exit_code == (3 if empty_url.startswith("sqlite:") else 0)
    bare("migrate", "--url", empty_url)
    dry = bare("uninstall", "--url", empty_url)
    assert "would remove table" in dry.stdout
    assert "Nothing was removed." in dry.stderr
    assert bare("migrate", "--check", "--url", empty_url).exit_code == 0
    removed = bare("uninstall", "--yes", "--url", empty_url, "--json")
    assert (document(removed)["removed"], document(removed)["kept"]) == (True, [])
    assert bare("migrate", "--check", "--url", empty_url).exit_code == 1
