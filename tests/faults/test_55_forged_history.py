"""Fault 55: the owner of the database inserts, deletes or replaces events, actions, seals, payloads or results, with
the guards enabled or briefly disabled. Either the database refuses, or `audit verify` reports the change.

The attacks are generated for every table of the trail, every operation and every column.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.outcome import Succeeded
from holdfast.features.assembly import Store, open_store
from holdfast.features.audit.model import Report
from tests.support.direct_sql import ByHand, PostgresByHand, open_by_hand, unguarded
from tests.support.features import anchor, keep, seal, sweep, verify
from tests.support.stores import BROKEN, forward, put, put_one, spec, work

pytestmark = pytest.mark.req("HF-4", "CX-4")

TRAIL = {"event": "seq", "action": "seq", "seal": "number", "job": "id", "job_state": "id", "result": "job_id"}
# The trail covers these columns of a job; only the guards protect its options and its position in the queue.
# The tenant of a seal is always '*'; a changed number is a deletion and an insertion, which are separate attacks.
COVERED = {"job": {"id", "tenant", "kind", "enqueued_by", "payload"}, "job_state": {"id", "tenant", "kind", "state"}}
UNCOVERED = {("seal", "tenant"), ("seal", "number")}


@dataclass
class Trail:
    """A database with sealed jobs of every kind, one of them purged, and a connection of its owner."""

    store: Store
    owner: ByHand
    folder: Path

    @contextmanager
    def attacked(self, *tables: str) -> Iterator[tuple[Store, ByHand]]:
        """Yield the database for an attack on these tables, and undo the attack afterwards."""
        if self.owner.name == "sqlite":
            path = self.folder / f"copy-{next(_NUMBERS)}.db"
            original = self.store.url.removeprefix("sqlite:///")
            with closing(sqlite3.connect(original)) as source, closing(sqlite3.connect(path)) as target:
                source.backup(target)
            url = f"sqlite:///{path}"
            with closing(open_store(url)) as store, closing(open_by_hand(url)) as owner:
                yield store, owner
            return
        self.owner.execute("create schema if not exists kept")
        for table in TRAIL:
            self.owner.execute(f"create table if not exists kept.{table} as table {table}")
        try:
            yield self.store, self.owner
        finally:
            touched = {*tables, "seal", "job_state", "event"} if "job" in tables else {*tables, "seal"}
            with unguarded(self.owner, *touched):
                for table in touched:
                    self.owner.execute(f"delete from {table}")
                    self.owner.execute(f"insert into {table} select * from kept.{table}")


_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def trails(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    created: dict[str, Trail] = {}
    with ExitStack() as stack:

        def trail(name: str) -> Trail:
            if name not in created:
                folder = tmp_path_factory.mktemp("forged")
                if name == "sqlite":
                    url = f"sqlite:///{folder}/jobs.db"
                else:
                    url = stack.enter_context(request.getfixturevalue("postgres_databases").fresh())
                store = stack.enter_context(closing(open_store(url)))
                store.migrate()
                populate(store)
                created[name] = Trail(store, stack.enter_context(closing(open_by_hand(url))), folder)
            return created[name]

        yield trail


def populate(store: Store) -> None:
    put_one(store, payload={"gone": 1})
    work(store, Succeeded('"old"'))
    keep(store, clean="1d", purge="2d")
    forward(store, 3 * 86400)
    put_one(store)
    seal(store)
    assert sweep(store)["held"] > 0  # until the event of the cleaning is sealed
    put_one(store)
    seal(store)
    forward(store, 120)
    assert sweep(store)["purge"] == 1
    for _ in range(2):
        put(store, *(spec(payload={"a": 1}) for _ in range(3)))
        work(store, BROKEN)
        work(store, Succeeded('{"sum": 7}'))
        store.run(store.executors.set(f"gpu-{next(_NUMBERS)}", "executor", "ada"))
        store.run(store.executors.remove(f"gpu-{next(_NUMBERS) - 1}", "ada"))
        seal(store)
    assert verify(store).ok
    assert verify(store).purged > 0


def columns(owner: ByHand, table: str) -> dict[str, str]:
    if owner.name == "sqlite":
        return {row[1]: row[2].lower() for row in owner.execute(f"pragma table_info({table})")}
    rows = owner.execute(
        "select attname, format_type(atttypid, null) from pg_attribute"
        f" where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped"
    )
    return dict(rows)


def other_value(column: str, kind: str, sqlite: bool) -> str:
    """Return an SQL expression with another value for this column."""
    if column in ("state", "to_state", "from_state"):
        return f"case {column} when 'cancelled' then 'succeeded' else 'cancelled' end"
    if column in ("payload", "value"):
        return """'{"forged": true}'"""
    if column in ("meta", "changed"):
        return """'{"forged": true}'"""
    if column in ("previous", "digest"):
        return "reverse(digest)" if not sqlite else "replace(replace(digest, 'a', 'b'), '1', '2')"
    if kind == "uuid":
        return "gen_random_uuid()"
    if column in ("job_id", "id") and sqlite:
        return "'00000000-0000-7000-8000-000000000000'"
    if kind in ("bytea", "blob"):
        if sqlite:
            return f"CAST(zeroblob(length({column})) AS BLOB)"
        return f"decode(repeat('00', octet_length({column})), 'hex')"
    if kind.startswith("timestamp"):
        return f"{column} + interval '1 second'"
    if kind in ("integer", "bigint", "smallint"):
        return f"coalesce({column}, 0) + 1"
    return f"coalesce({column}, '') || 'x'"


def attacks(owner: ByHand) -> Iterator[tuple[str, str, str]]:
    """Yield name, table and statement of each attack, which changes one sealed row."""
    sqlite = owner.name == "sqlite"
    for table, key in TRAIL.items():
        found = columns(owner, table)
        if table == "action":
            where = "seq = (select min(seq) from action where type = 'add')"
        elif table == "event":
            where = "seq = (select max(seq) from event where type = 'succeed')"
        elif table == "seal":
            where = "number = (select max(number) - 1 from seal)"
        else:
            newest = "(select job_id from event where seq = (select max(seq) from event where type = 'succeed'))"
            where = f"{key} = {newest}"
        yield f"delete {table}", table, f"delete from {table} where {where}"
        for column, kind in found.items():
            if column not in COVERED.get(table, found) or (table, column) in UNCOVERED:
                continue
            check = "" if kind not in ("bytea", "blob") else f" and length({column}) > 0"
            if table == "seal" and column in ("actions",):
                where = "number = (select max(number) from seal where action_count > 0)"
            if (column, table) in {("first_seq", "action"), ("last_seq", "action")}:
                where = "seq = (select min(seq) from action where type = 'purge')"
            statement = f"update {table} set {column} = {other_value(column, kind, sqlite)} where {where}{check}"
            yield f"update {table}.{column}", table, statement
        listed = [name for name in found if name != key and not (table == "seal" and name == "number")]
        names = ", ".join(listed)
        if table in ("event", "action"):
            past = f"select (select min(seq) - 1 from {table}), {names} from {table} where {where}"
            yield f"insert {table} into the past", table, f"insert into {table} ({key}, {names}) {past}"
        if table == "event":
            late = f"select (select max(seq) + 50 from {table}), {names} from {table} where {where}"
            yield "insert event once more", table, f"insert into {table} ({key}, {names}) {late}"
        if table == "seal":
            late = f"select (select max(number) + 1 from seal), {names} from seal where {where}"
            yield "insert seal", table, f"insert into seal (number, {names}) {late}"
        if table == "result":
            some = "select id, tenant, '7' from job_state where state <> 'succeeded' limit 1"
            yield "insert result", table, f"insert into result (job_id, tenant, value) {some}"
        if table in ("job", "job_state"):
            listed = [name for name in found if name not in (key, "n")]
            names = ", ".join(listed)
            fresh = "'00000000-0000-7000-8000-000000000001'"
            numbered = "n, " if "n" in found else ""
            number = "(select max(n) + 50 from job), " if "n" in found else ""
            copied = f"select {number}{fresh}, {names} from {table} where {where}"
            yield f"insert {table}", table, f"insert into {table} ({numbered}{key}, {names}) {copied}"
        if sqlite:
            for column in found:
                if column not in COVERED.get(table, found) or column in (key, "tenant", "n"):
                    continue
                values = ", ".join(other_value(c, found[c], True) if c == column else c for c in found)
                replaced = f"select {values} from {table} where {where}"
                yield (
                    f"replace {table}.{column}",
                    table,
                    f"insert or replace into {table} ({', '.join(found)}) {replaced}",
                )


def flaw_texts(report: Report) -> str:
    return "; ".join(flaw.says for flaw in report.flaws)


@pytest.mark.slow
@pytest.mark.parametrize("guards", ["with guards", "without guards"])
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_every_forgery_is_refused_or_reported(trails: Any, database: str, guards: str) -> None:
    trail: Trail = trails(database)
    saved_anchor = anchor(trail.store)
    unnoticed, tried, done = [], 0, 0
    for name, table, statement in list(attacks(trail.owner)):
        tried += 1
        if guards == "with guards":
            trail.owner.begin()
            refused = trail.owner.refusal(statement) is not None
            trail.owner.rollback()
            if refused or name == "insert job":  # an insert is a valid way to enqueue
                continue
        with trail.attacked(table) as (store, owner):
            if guards == "with guards":
                refusal = owner.refusal(statement)
            else:
                with unguarded(owner, table):
                    refusal = owner.refusal(statement)
                if refusal is not None and "violates" not in refusal.lower() and "constraint" not in refusal.lower():
                    pytest.fail(f"{name} is not a valid attack: {refusal}")
            if refusal is None:
                done += 1
                if verify(store, [saved_anchor]).ok:
                    seal(store)  # some forgeries are reported only after the next seal
                    if verify(store, [saved_anchor]).ok:
                        unnoticed.append(name)
    assert not unnoticed
    assert verify(trail.store, [saved_anchor]).ok, flaw_texts(verify(trail.store, [saved_anchor]))
    assert tried > 50
    assert done > 30 or guards == "with guards"


PURGE = (
    "insert into action (tenant, at, actor, type, subject, name, changed, first_seq, last_seq)"
    " values ('default', (select now from present), (select actor from present), 'purge', 'ledger', '1 jobs',"
    " :changed, :low, :high)"
)


def events_of(owner: ByHand, job_id: str) -> list[int]:
    return [row[0] for row in owner.execute("select seq from event where job_id = :id order by seq", {"id": job_id})]


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("claimed", ["nothing", "another job", "the job", "a cleaned job"])
@pytest.mark.parametrize("deleted", ["first event", "all events", "whole job"])
def test_forged_purge_is_reported(trails: Any, database: str, claimed: str, deleted: str) -> None:
    """The owner records a purge by retention and deletes the events: guards disabled, then enabled, then sealed."""
    with trails(database).attacked(*TRAIL) as (store, owner):
        saved_anchor = anchor(store)
        (victim,) = owner.execute("select job_id from event where type = 'succeed' order by seq desc limit 1")[0]
        (another,) = owner.execute("select id from job_state where state <> 'succeeded' limit 1")[0]
        numbers = events_of(owner, victim)
        gone = numbers[:1] if deleted == "first event" else numbers
        changed: dict[str, Any] = {"events": ",".join(map(str, gone)), "count": len(gone), "through": gone[-1]}
        clean: list[Any] = [gone[-1], "test.kind", "succeeded", 1, 0, "retention", None, None]
        clean[6] = json.dumps({"was": "succeeded", "events": ",".join(map(str, gone[:-1] or gone))})
        if claimed == "a cleaned job":  # repeats the jobs of the real purge
            (real,) = owner.execute("select changed from action where type = 'purge' order by seq limit 1")[0]
            before = real if isinstance(real, dict) else json.loads(real)
            changed["jobs"] = before["jobs"]
        elif claimed != "nothing":
            changed["jobs"] = {victim if claimed == "the job" else another: clean}
        with unguarded(owner, "event", "job", "job_state", "result"):
            owner.execute(PURGE, {"changed": json.dumps(changed), "low": gone[0], "high": gone[-1]})
            owner.execute(f"delete from event where seq in ({','.join(map(str, gone))})")
            if deleted == "whole job":
                for table, key in (("job_state", "id"), ("job", "id"), ("result", "job_id")):
                    owner.execute(f"delete from {table} where {key} = :id", {"id": victim})
        report = verify(store, [saved_anchor])
        assert not report.ok
        assert ("forged", "action") in {(flaw.kind, flaw.what) for flaw in report.flaws}
        seal(store)
        assert not verify(store, [saved_anchor]).ok


@pytest.mark.slow
def test_event_with_false_transaction_or_time_is_refused_or_reported(owned_forgery: tuple[Store, ByHand]) -> None:
    """A trigger of the owner writes at the same trigger depth as Holdfast's (PostgreSQL)."""
    store, owner = owned_forgery
    job_id = put_one(store)
    seal(store)
    put_one(store)
    seal(store)
    owner.execute("create temp table lever (x integer, xid bigint, at timestamptz)")
    owner.execute(
        "create function pg_temp.forge() returns trigger language plpgsql as $$ begin"
        " insert into holdfast.event (job_id, tenant, kind, type, from_state, to_state, attempt, at, actor, meta, xid)"
        f" values ('{job_id}', 'default', 'mail.send', 'move', 'queued', 'queued', 0, new.at, 'nobody', '{{}}',"
        " new.xid);"
        " return new; end $$"
    )
    owner.execute("create trigger forge before insert on lever for each row execute function pg_temp.forge()")
    old = "(select xid from event order by seq limit 1)"
    assert "written_now" in str(owner.refusal(f"insert into lever select 1, {old}, now()"))
    now = "pg_current_xact_id()::text::bigint"
    assert "written_now" in str(owner.refusal(f"insert into lever select 1, {now}, now() - interval '1 day'"))
    owner.execute("alter table event no force row level security")  # like a superuser, to whom no policy applies
    assert owner.refusal(f"insert into lever select 1, {old}, now()") is None
    owner.execute("alter table event force row level security")
    seal(store)
    assert [(flaw.kind, flaw.what) for flaw in verify(store).flaws] == [("inserted", "event")]


@pytest.fixture
def owned_forgery(postgres_server: Any) -> Iterator[tuple[Store, ByHand]]:
    from tests.support.postgres_roles import OwnedDatabases, as_role

    databases = OwnedDatabases(postgres_server)
    try:
        with databases.fresh() as dsn:
            url = as_role(dsn, databases.owner)
            with closing(open_store(url)) as store, closing(PostgresByHand(url)) as owner:
                yield store, owner
    finally:
        databases.close()
