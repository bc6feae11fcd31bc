"""Migrating an empty database, by command and by script, and the errors for unsuitable databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import holdfast.stores
from holdfast.engine.job import JobSpec
from holdfast.errors import SchemaMismatch
from holdfast.features.assembly import Store, open_store
from holdfast.stores.requests import ClaimRequest, JobFilter
from holdfast.stores.sqlite.connections import database_path
from tests.migration.catalogue import applied, catalogue, write

pytestmark = pytest.mark.req("DP-20", "SC-1")

STORES = Path(holdfast.stores.__file__).parent


def names_of(store: str) -> tuple[str, ...]:
    """The names of what is applied, in this order: the migrations, the code, and what comes after the transaction."""
    stems = sorted(path.stem for path in (STORES / store / "migrations").glob("*.sql"))
    return (*(stem for stem in stems if "." not in stem), "code", *(stem for stem in stems if stem.endswith(".later")))


NAMES = names_of("sqlite")
"""Read from the files; both stores have the same names."""
SPEC = JobSpec(
    id="01900000-0000-7000-8000-000000000001",
    kind="mail",
    payload="{}",
    enqueued_by="test",
    source_system="test",
)


@pytest.fixture
def store(empty_url: str) -> Iterator[Store]:
    with closing(open_store(empty_url)) as opened:
        yield opened


def test_both_stores_have_the_same_migrations() -> None:
    assert NAMES[0] == "0001_initial"
    assert names_of("postgres") == NAMES


def test_empty_database_reports_pending_migrations(store: Store) -> None:
    status = store.schema()
    assert (status.applied, status.pending, status.unknown) == ((), NAMES, ())
    assert not status.current


@pytest.mark.slow
def test_migrating_creates_the_schema(store: Store) -> None:
    status = store.migrate()
    assert (status.applied, status.pending, status.unknown) == (tuple(sorted(NAMES)), (), ())
    assert status.current
    assert store.schema() == status
    assert store.run(store.jobs.enqueue([SPEC], "default"))[0].created


@pytest.mark.slow
def test_migrating_again_changes_nothing(store: Store, empty_url: str) -> None:
    store.migrate()
    store.run(store.jobs.enqueue([SPEC], "default"))
    before, marks = catalogue(empty_url), applied(empty_url)
    assert store.migrate().current
    assert catalogue(empty_url) == before
    assert applied(empty_url) == marks
    assert store.run(store.jobs.get(SPEC.id, "default")) is not None


@pytest.mark.slow
def test_catalogue_contains_the_schema(store: Store, empty_url: str) -> None:
    """Otherwise two empty results would be equal, and the tests below would prove nothing."""
    assert catalogue(empty_url) == {}
    store.migrate()
    text = str(catalogue(empty_url))
    for thing in ("job_state", "claimable", "record_transition", "wanted_of_event", "attempts"):
        assert thing in text, thing


@pytest.mark.slow
def test_migration_script_creates_the_same_schema(store: Store, empty_url: str, other_url: str) -> None:
    store.migrate()
    script = store.migration_sql()
    if other_url.startswith("sqlite:"):
        with closing(sqlite3.connect(database_path(other_url))) as by_hand:
            by_hand.executescript(script)
    else:
        with psycopg.connect(other_url, autocommit=True) as connection:
            connection.execute(script.encode())
    assert catalogue(other_url) == catalogue(empty_url)
    assert applied(other_url) == applied(empty_url)
    with closing(open_store(other_url)) as other:
        assert other.schema().current
        assert other.run(other.jobs.enqueue([SPEC], "default"))[0].created


def test_changed_code_is_installed_again(store: Store, empty_url: str) -> None:
    """Another digest and a missing trigger, as a release with other triggers would find it."""
    store.migrate()
    before = catalogue(empty_url)
    table = "" if empty_url.startswith("sqlite:") else " on job_state"
    write(empty_url, f"drop trigger record_transition{table}")
    write(empty_url, "update migration set digest = 'of another release' where name = 'code'")
    assert catalogue(empty_url) != before
    assert store.schema().pending == ("code",)
    assert store.migrate().current
    assert catalogue(empty_url) == before


@pytest.mark.slow
def test_newer_database_is_refused_and_unchanged(store: Store, empty_url: str) -> None:
    store.migrate()
    write(empty_url, "insert into migration (name, digest) values ('0999_tomorrow', 'x')")
    before = catalogue(empty_url)
    status = store.schema()
    assert (status.unknown, status.unsupported, status.current) == (("0999_tomorrow",), False, False)
    with pytest.raises(SchemaMismatch, match="0999_tomorrow") as refused:
        store.migrate()
    assert refused.value.code == "schema_newer"
    assert refused.value.fix is not None
    assert catalogue(empty_url) == before


def test_database_of_a_development_version_is_refused_and_unchanged(store: Store, empty_url: str) -> None:
    """Databases from before the first release had other migrations, which do not lead to this schema."""
    store.migrate()
    write(empty_url, "update migration set name = '0001_engine' where name = '0001_initial'")
    before, marks = catalogue(empty_url), applied(empty_url)
    status = store.schema()
    assert (status.unknown, status.unsupported, status.current) == (("0001_engine",), True, False)
    with pytest.raises(SchemaMismatch, match="0001_engine") as refused:
        store.migrate()
    assert refused.value.code == "schema_unsupported"
    assert "new database" in str(refused.value.fix)
    assert (catalogue(empty_url), applied(empty_url)) == (before, marks)


@pytest.mark.slow
def test_changed_migration_is_refused(store: Store, empty_url: str) -> None:
    store.migrate()
    write(empty_url, "update migration set digest = 'edited' where name = '0001_initial'")
    for call in (store.schema, store.migrate):
        with pytest.raises(SchemaMismatch, match="0001_initial") as refused:
            call()
        assert refused.value.code == "migration_changed"


@pytest.mark.parametrize(
    "operation", ["enqueue", "claim", "get", "list_jobs", "counts", "health", "promote_due", "now"]
)
def test_use_of_an_empty_database_names_the_migrate_command(store: Store, operation: str) -> None:
    flows: dict[str, Callable[[], object]] = {
        "enqueue": lambda: store.run(store.jobs.enqueue([SPEC], "default")),
        "claim": lambda: store.run(store.leases.claim(ClaimRequest(lease=SPEC.id, queues=("default",), want=1))),
        "get": lambda: store.run(store.jobs.get(SPEC.id, "default")),
        "list_jobs": lambda: store.run(store.jobs.list(JobFilter(tenant="default"))),
        "counts": lambda: store.run(store.jobs.counts("default")),
        "health": lambda: store.run(store.health.get("default")),
        "promote_due": lambda: store.run(store.leases.promote()),
        "now": lambda: store.run(store.clock.now()),
    }
    with pytest.raises(SchemaMismatch) as refused:
        flows[operation]()
    assert refused.value.code == "not_migrated"
    assert "holdfast migrate" in str(refused.value)
