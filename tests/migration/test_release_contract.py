"""The schema of this tree offers all that the previous release calls, reads and writes (CONTRIBUTING: expand, then
contract)."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.features.assembly import open_store
from holdfast.stores.migrations import OLDEST, release_number
from holdfast.stores.sqlite.connections import database_path
from tests.migration.catalogue import write
from tests.migration.release_contract import (
    Names,
    Offer,
    missing,
    needed_functions,
    offers,
    refused,
    statements,
)
from tests.support.frozen import Frozen
from tests.support.postgres_roles import ROLES

pytestmark = pytest.mark.req("HF-14", "SC-1")


@pytest.fixture(scope="module")
def names(previous_release: Frozen) -> Names:
    return Names(previous_release.texts())


@pytest.fixture
def was(empty_url: str, previous_release: Frozen) -> Offer:
    """The schema that the previous release installs; `empty_url` is then migrated to this one."""
    previous_release.migrate(empty_url)
    offer = offers(empty_url)
    with closing(open_store(empty_url)) as store:
        assert store.migrate().current
    return offer


def test_frozen_release_is_supported(previous_release: Frozen) -> None:
    assert release_number(previous_release.version) >= release_number(OLDEST), "remove the wheel"


def test_previous_release_finds_everything_it_needs(was: Offer, empty_url: str, names: Names) -> None:
    assert missing(was, offers(empty_url), names) == []


@pytest.mark.slow
def test_statements_of_the_previous_release_prepare(tmp_path: Path, previous_release: Frozen) -> None:
    """On SQLite a release sends its own statements; on PostgreSQL it calls the functions compared above."""
    old, migrated = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/migrated.db"
    previous_release.migrate(old)
    shutil.copy(database_path(old), database_path(migrated))
    with closing(open_store(migrated)) as store:
        assert store.migrate().current
    candidates = statements(previous_release.texts())
    prose = refused(old, candidates)
    theirs = [text for text in candidates if text not in prose]
    assert len(theirs) > 300, "the release has more statements"
    assert refused(migrated, theirs) == {}
    write(migrated, "alter table holdfast_lease rename column holder to keeper")
    assert len(refused(migrated, theirs)) > 3


@pytest.mark.slow
def test_derived_names_cover_the_release(was: Offer, names: Names, kind: str) -> None:
    """The derivation finds what the release is known to use; a broken one would find nothing and pass."""
    tables = {name for name in was.relations if name in names}
    prefix = "holdfast_" if kind == "sqlite" else ""
    assert {f"{prefix}{name}" for name in ("job", "job_state", "event", "lease", "schedule", "step")} <= tables
    assert "claimed_by_nobody" not in names
    if kind == "postgres":
        called = needed_functions(was, names)
        assert {"exchange", "claim_many", "enqueue_one", "settle_many", "save_steps", "cancel_many"} <= called.keys()
        assert len(called) > 150
    else:
        assert {"holdfast_claimable", "holdfast_operation_running"} <= {
            index for index in was.indexes if index in names
        }


BROKEN = {
    "postgres": {
        "function gone": ("drop function enqueue_one", "function enqueue_one"),
        "argument changed": (
            "do $$ begin drop function heartbeat cascade; create function heartbeat(lease uuid) returns integer"
            " language sql return 1; end $$",
            "function heartbeat(",
        ),
        "result changed": (
            "do $$ begin drop function clock_now cascade; create function clock_now() returns text language sql"
            " return 'x'; end $$",
            "function clock_now()",
        ),
        "privilege revoked": ("revoke execute on function exchange from holdfast_executor", "function exchange("),
        "column renamed": ("alter table lease rename column holder to keeper", "column lease.holder"),
        "column of a view gone": ("drop view attempts cascade", "attempts is gone"),
        "column without default": ("alter table event add column region text not null", "event.region"),
        "column nullable": ("alter table job_state alter column kind drop not null", "column job_state.kind"),
    },
    "sqlite": {
        "table renamed": ("alter table holdfast_step rename to holdfast_steps", "holdfast_step is gone"),
        "column renamed": ("alter table holdfast_lease rename column holder to keeper", "holdfast_lease.holder"),
        "view gone": ("drop view holdfast_attempts", "holdfast_attempts is gone"),
        "index gone": ("drop index holdfast_claimable", "index holdfast_claimable"),
    },
}


@pytest.mark.parametrize(
    ("kind", "change"), [(kind, change) for kind, changes in BROKEN.items() for change in changes], scope="function"
)
@pytest.mark.slow
def test_broken_schema_is_noticed(kind: str, change: str, was: Offer, empty_url: str, names: Names) -> None:
    statement, expected = BROKEN[kind][change]
    write(empty_url, statement)
    found = missing(was, offers(empty_url), names)
    assert any(expected in line for line in found), found


def test_new_optional_argument_is_no_break(empty_postgres_url: str, names: Names) -> None:
    with closing(open_store(empty_postgres_url)) as store:
        store.migrate()
    was = offers(empty_postgres_url)
    call = "create function clock_now(zone text{}) returns timestamptz language sql return now()"
    write(empty_postgres_url, "drop function clock_now cascade")
    write(empty_postgres_url, call.format(" default 'UTC'"))
    write(empty_postgres_url, "grant execute on function clock_now to " + ", ".join(ROLES))
    lost = [line for line in missing(was, offers(empty_postgres_url), names) if "clock_now" in line]
    assert lost == []
    write(empty_postgres_url, "create function clock_now(at timestamptz) returns timestamptz language sql return at")
    lost = [line for line in missing(was, offers(empty_postgres_url), names) if "clock_now" in line]
    assert lost, "the call is ambiguous"
