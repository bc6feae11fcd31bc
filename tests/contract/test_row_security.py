"""Row-level security: it fails closed, applies to the owner, and leaks nothing between transactions.

Faults 31 (rls_matrix) and 32 (pool_leak). Tables, views and partitions come from the catalogue, so later ones are
covered too.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

import psycopg
import pytest

from holdfast.engine.job import References
from holdfast.engine.outcome import Snoozed, Succeeded
from holdfast.engine.states import State
from holdfast.errors import HoldfastError, InvalidSetting, Refused
from holdfast.features.agents.model import Definition
from holdfast.features.archives.model import Finished
from holdfast.features.assembly import Store, open_store
from holdfast.features.attempts.model import LogPart
from holdfast.features.dead_letters.model import NewOperation
from holdfast.features.limits.model import ReservationRequest, Rule
from holdfast.features.payloads.model import RuleDraft
from holdfast.features.postgres import PostgresStore
from holdfast.features.registry.model import EventTypeDraft
from holdfast.features.retention.model import OrphanedFile, RetentionRule
from holdfast.features.workflows.model import CallbackSpec
from holdfast.stores.requests import JobFilter, SendEvent
from tests.support.direct_sql import PostgresByHand
from tests.support.features import connect, feed, issuing, pause, sent, subscribe, webhook
from tests.support.features import register_tenant as register
from tests.support.ledger import check_ledger
from tests.support.postgres_roles import ROLES, OwnedDatabases, as_role
from tests.support.schedules import add, decided, firing, template
from tests.support.steps import asks, ballot, entry, keep_token, save, say, send, waits
from tests.support.stores import FINAL, apply, claim, new_id, open_lease, put, put_one, settle, spec, work
from tests.support.workflows import Flow

OLD = "00000000-0000-7000-8000-000000000001"  # the id of no job

pytestmark = pytest.mark.req("JF-1", "JF-2")

TENANTS = ("acme", "umbrella")
# Executors, seals and registries have rows of '*' only and their own tests below. No role can read the positions in
# shared queues.
LOCKS = {"lock_dispatch", "lock_seal", "mutex", *(f"lock_subscription_{n}" for n in range(8))}
WITHOUT_TENANT = LOCKS | {
    *("clock", "migration", "installed", "cancellation", "dispatch", "executor", "seal", "fair_place", "usage_place"),
    *(
        "upkeep",
        "owed",
        "event_partition",
        "event_rest",
        "ledger_epoch",
    ),  # `event_rest` is empty: these jobs have a partition
    *("registered_kind", "registered_event"),
}
# Readable by the owner only.
UNSEEN = {
    "idempotency",
    "content",
    "watch",
    "approval_token",
    "api_token",
    "occupied_slot",
    "rate_meter",
    "tenant_load",
    "pending_change",
    "unsure_wait",
    "login_pin",
}
# Refusals that come before the policy when a row of another tenant is inserted.
GUARDS = {
    *(
        "no job",
        "written only by the functions of this schema",
        "is not encrypted with",
        "written only when the payload is replaced",
    ),
    *(
        "written by triggers only",
        "only the job that waits for it can open",
        "only approvers can vote",
        "for an open approval",
    ),
    *(
        "the schedule or the job does not exist",
        "its schedule does not exist in its tenant",
        "the next version must be one more",
        "does not exist",
    ),
    *("must be written by its actor", "was not redriven as"),
}
UNBOUND = {"unset": None, "empty": "", "a stranger": "nobody"}


@dataclass
class Database:
    admin_url: str
    owner: str

    def as_(self, who: str, tenant: str | None) -> PostgresByHand:
        return PostgresByHand(as_role(self.admin_url, self.owner if who == "owner" else who), tenant=tenant)

    def relations(self) -> list[str]:
        with closing(PostgresByHand(self.admin_url)) as admin:
            rows = admin.execute(
                "select relname from pg_class where relnamespace = 'holdfast'::regnamespace"
                " and relkind in ('r', 'p', 'v', 'm') order by 1"
            )
        return [str(row[0]) for row in rows if row[0] not in {*WITHOUT_TENANT, "present"}]


@pytest.fixture(scope="module")
def database(owned_databases: OwnedDatabases) -> Iterator[Database]:
    """A database with rows of two tenants in every table."""
    with owned_databases.fresh() as url, closing(open_store(as_role(url, owned_databases.owner))) as store:
        for tenant in TENANTS:
            register(store, tenant, max_pending=100)
            put(store, *(spec(key=f"k-{n}", content_key=f"c-{n}", tags=("t",)) for n in range(5)), tenant=tenant)
            store.run(store.limits.set(Rule.of("kind", "mail.send", 9, "9/s", 9), "ada", tenant))
            store.run(store.queues.set_aging("default", 60.0, 1, 9, "ada", tenant))
            pause(store, queue="unused", tenant=tenant)
            store.run(store.reservations.set(ReservationRequest(new_id(), "queue", "unused", 60.0), "ada", tenant))
            lease = open_lease(store, tenant=tenant)
            done, running, asking, broken = claim(store, lease, 4, tenant=tenant)
            store.run(store.steps.save_checkpoint(running.id, lease, 1, "p", "1", tenant))
            store.run(store.steps.add_artifact(running.id, lease, 1, "f", "file:f", tenant))
            store.run(store.attempts.append_log(lease, [LogPart(running.id, 1, 1, "a line\n")], tenant))
            settle(store, done, Succeeded("1"), tenant=tenant)
            settle(store, broken, FINAL, tenant=tenant)
            store.run(store.ledger.save_cursor("c", "0", None, tenant))
            store.run(store.jobs.watch(running.id, tenant, 60))
            save(store, running, entry(), tenant=tenant)
            send(store, tenant=tenant)
            approval_id = new_id()
            apply(store, lease, asks(asking, approval_id, quorum=2), tenant=tenant)
            say(store, approval_id, ballot(), tenant=tenant)
            keep_token(store, approval_id, f"hash of {tenant}")
            store.run(store.agents.set(Definition(id="planner", name="Planner"), tenant))
            store.run(store.templates.set(template(), "ada", tenant))
            store.run(store.schedules.fire([decided(add(store, tenant), firing())], tenant))
            Flow(store, {"a": "", "b": "a"}, callbacks=(CallbackSpec(spec("tell"), "failure", None),)).start(tenant)
            subscribe(store, "after", "job.enqueue", start="beginning", tenant=tenant)
            assert feed(store, "after", 1, tenant).made == 1
            connect(store, tenant=tenant)
            hook = webhook(store, tenant=tenant)
            assert store.run(store.webhooks.note_delivery(sent(hook.id, running.id), tenant))
            store.run(store.retention.set(RetentionRule.of("slow", clean_after="9d"), "ada", tenant))
            store.run(store.payload_rules.set(RuleDraft.of("heal", restricted=True), "ada", tenant))
            was, becomes = (f'{{"$holdfast":{{"key":"{key}","sealed":"AAAA"}}}}' for key in ("k1", "k2"))
            sealed = put_one(store, "heal", payload=json.loads(was), references=References("s3://x"), tenant=tenant)
            assert store.run(store.payload_rules.reseal(sealed, was, becomes, "ada", tenant))
            store.run(store.payload_rules.set(RuleDraft.of("wrong", replaceable=True), "ada", tenant))
            put_one(store, "wrong", queue="wrong", tenant=tenant)
            (wrong,) = claim(store, lease, queues=("wrong",), tenant=tenant)
            settle(store, [wrong], Snoozed(60.0), tenant=tenant)
            store.run(store.jobs.replace_payload(wrong.id, '{"to": "b"}', "typo", "ada", tenant))
            dead, _ = put(store, *(spec(queue="dying") for _ in range(2)), tenant=tenant)
            settle(store, claim(store, lease, 2, queues=("dying",), tenant=tenant), FINAL, tenant=tenant)
            store.run(store.dead_letters.redrive_as(dead, new_id(), "{}", None, "ada", tenant))
            operation, jobs_wanted = NewOperation(new_id(), "redrive"), JobFilter(tenant=tenant, kind="none")
            store.run(store.operations.start(operation, jobs_wanted, "ada", tenant))
            settle(store, claim(store, lease, 1, tenant=tenant), tenant=tenant)
            put_one(store, queue="patient", tenant=tenant)
            (patient,) = claim(store, lease, 1, queues=("patient",), tenant=tenant)
            apply(store, lease, waits(patient, "never sent"), tenant=tenant)
            store.run(store.tokens.issue(issuing(), "ada", tenant))
            store.run(store.policies.set({"unknown_event_types": "warn"}, "ada"))
            store.run(store.ledger.send(SendEvent(new_id(), "unknown", "{}"), "ada", tenant))
            lost = OrphanedFile(tenant, OLD, f"artifact://{tenant}/{OLD}/{'a' * 64}")
            assert store.run(store.retention.find_orphans([lost], tenant)) == 1
            (ended, *_) = store.run(store.jobs.list(JobFilter(tenant=tenant, state=State.SUCCEEDED, limit=1)))
            assert ended.finished_at is not None
            archived = [Finished(ended.id, tenant, ended.finished_at)]
            store.run(store.archives.record(new_id(), lost.ref, 1, archived, "ada", tenant))
        store.run(store.usage.count(begin=True))
        store.run(store.executors.set("worker", "executor", "ada"))
        store.run(store.kinds.register({"mail.send": None}, "ada"))
        store.run(store.event_types.set(EventTypeDraft("paid"), "ada"))
        store.run(store.audit.seal("tests"))
        result = Database(url, owned_databases.owner)
        with closing(PostgresByHand(url)) as admin:
            for tenant in TENANTS:  # no operation creates these rows
                admin.execute(
                    "insert into quarantine (job_id, tenant, why, at, until)"
                    " values (gen_random_uuid(), :tenant, 'bad', now(), now())",
                    {"tenant": tenant},
                )
                admin.execute(f"insert into login_pin values ('of {tenant}', '{tenant}', 'ada', now())")
            for relation in result.relations():
                held = {row[0] for row in admin.execute(f"select distinct tenant from {relation}")}
                assert held - {"*"} == set(TENANTS), f"{relation} is not filled; the tests below would prove nothing"
        yield result
        check_ledger(store)


@pytest.mark.parametrize("scope", UNBOUND)
@pytest.mark.parametrize("who", ["owner", *ROLES])
def test_no_rows_without_a_tenant(database: Database, who: str, scope: str) -> None:
    with closing(database.as_(who, UNBOUND[scope])) as by_hand:
        for relation in database.relations():
            try:
                assert by_hand.execute(f"select count(*) from {relation}") == [(0,)], relation
            except psycopg.errors.InsufficientPrivilege:
                assert relation in UNSEEN or relation.startswith(
                    "event_"
                )  # partitions are readable only through `event`
                assert who != "owner"


@pytest.mark.parametrize("tenant", TENANTS)
@pytest.mark.parametrize("who", ["owner", *ROLES])
def test_tenant_sees_its_own_rows(database: Database, who: str, tenant: str) -> None:
    with closing(database.as_(who, tenant)) as by_hand:
        for relation in database.relations():
            with suppress(psycopg.errors.InsufficientPrivilege):
                assert by_hand.execute(f"select distinct tenant from {relation}") == [(tenant,)], relation


@pytest.mark.parametrize("scope", [*UNBOUND, "another tenant"])
def test_owner_cannot_change_rows_of_other_tenants(database: Database, scope: str) -> None:
    bound = UNBOUND.get(scope, "umbrella")
    with closing(PostgresByHand(database.admin_url)) as admin, closing(database.as_("owner", bound)) as by_hand:
        for table in by_hand.tables():
            if table in WITHOUT_TENANT:
                continue
            for statement in (f"update {table} set tenant = tenant", f"delete from {table}"):
                refusal = by_hand.refusal(
                    f"with gone as ({statement} where tenant = 'acme' returning 1) select 1 / count(*) from gone"
                )
                # No row, hence a division by zero; some triggers refuse before they see rows.
                assert refusal is not None, statement
                assert re.search("division by zero|never changed|written only by the functions", refusal), statement
            ((row,),) = admin.execute(f"select to_json(t)::text from {table} t where tenant = 'acme' limit 1")
            refusal = by_hand.refusal(
                f"insert into {table} select * from json_populate_record(null::{table}, :row)", {"row": row}
            )
            assert refusal is not None, table
            assert "row-level security policy" in refusal or any(text in refusal for text in GUARDS), (table, refusal)


@pytest.mark.req("DP-6")
def test_executors_are_readable_but_not_writable_for_a_tenant(database: Database) -> None:
    with closing(database.as_("owner", "acme")) as by_hand:
        assert by_hand.execute("select label from executor") == [("worker",)]
        for statement in ("update executor set role = 'generator'", "delete from executor"):
            assert by_hand.connection.execute(statement.encode()).rowcount == 0
        insert = "insert into executor (label, role, added_by, added_at) values ('x', 'executor', 'eve', now())"
        assert "row-level security policy" in (by_hand.refusal(insert) or "")
    with closing(database.as_("owner", None)) as by_hand:
        assert by_hand.execute("select label from executor") == []


@pytest.mark.req("DP-25")
@pytest.mark.parametrize("table", ["registered_kind", "registered_event"])
def test_registries_are_readable_but_not_writable_for_a_tenant(database: Database, table: str) -> None:
    with closing(database.as_("owner", "acme")) as by_hand:
        assert len(by_hand.execute(f"select name from {table}")) == 1
        for statement in (f"update {table} set set_by = 'eve'", f"delete from {table}"):
            assert by_hand.connection.execute(statement.encode()).rowcount == 0
        insert = f"insert into {table} (name, set_by, set_at) values ('x', 'eve', now())"
        assert "row-level security policy" in (by_hand.refusal(insert) or "")


@pytest.mark.req("HF-4")
def test_seals_are_readable_without_their_digests(database: Database) -> None:
    """Only roles that may read every tenant's events can read the numbers and digests of seals."""
    for role in ROLES:
        with closing(database.as_(role, "acme")) as by_hand:
            assert by_hand.execute("select number, event_count > 0 from seal") == [(1, True)]
            refusal = by_hand.refusal("select events from seal")
            assert (refusal is None) == (role in ("holdfast_executor", "holdfast_admin")), role
    with closing(database.as_("owner", None)) as by_hand:
        assert by_hand.execute("select number from seal") == []
    with closing(open_store(as_role(database.admin_url, "holdfast_viewer"))) as store:
        ours = store.run(store.jobs.list(JobFilter(tenant="acme")))[0].id
        assert len(store.run(store.audit.sealed(ours, "acme"))) >= 1
        assert store.run(store.audit.sealed(ours, "umbrella")) == []
        with pytest.raises(Refused):
            store.run(store.audit.block(None))


def test_leases_of_every_tenant_are_readable_but_not_writable(database: Database) -> None:
    with closing(open_store(as_role(database.admin_url, database.owner))) as store:
        lease = open_lease(store, "every tenant")
        with closing(database.as_("owner", "acme")) as by_hand:
            rows = by_hand.execute("select tenant from lease order by tenant")
            assert rows == [("*",), ("acme",)]
            assert by_hand.connection.execute("update lease set holder = 'mine' where tenant = '*'").rowcount == 0
        store.run(store.leases.end(lease, "closed", "*"))
        with closing(PostgresByHand(database.admin_url)) as admin:
            admin.execute("delete from lease where tenant = '*'")


# -- fault 32: one connection, many tenants ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_tenants_interleaved_on_one_connection_leak_nothing(owned_postgres_url: str, seed: int) -> None:
    """With errors in the middle of transactions; after each one the connection has no tenant."""
    rng = random.Random(seed)
    store = PostgresStore(owned_postgres_url, pool_size=1)
    jobs: dict[str, list[str]] = {tenant: [] for tenant in ("a", "b", "c")}
    with closing(store):
        for _ in range(80):
            tenant, other = rng.sample(sorted(jobs), 2)
            match rng.randrange(6):
                case 0:
                    jobs[tenant] += put(store, *(spec(tags=("t",)) for _ in range(rng.randint(1, 3))), tenant=tenant)
                case 1:
                    with pytest.raises(HoldfastError):
                        store.run(store.jobs.enqueue([spec(), spec(kind=" ")], tenant))
                case 2:
                    listed = store.run(store.jobs.list(JobFilter(tenant=tenant, limit=1000)))
                    assert sorted(each.id for each in listed) == sorted(jobs[tenant])
                case 3:
                    work(store, tenant=tenant)
                case 4:
                    with pytest.raises(HoldfastError):
                        claim(store, open_lease(store, tenant=tenant), tenant=other)
                case _:
                    for job_id in jobs[other]:
                        assert store.run(store.jobs.get(job_id, tenant)) is None
            assert _left_behind(store) in (None, "")
        check_ledger(store)


def _left_behind(store: PostgresStore) -> str | None:
    with store._pools.thread_pool().connection() as connection:
        row = connection.execute("select current_setting('holdfast.tenant', true)").fetchone()
    assert row is not None
    value: str | None = row[0]
    return value


def test_tenant_is_bound_for_one_transaction(database: Database) -> None:
    with closing(database.as_("owner", None)) as by_hand:
        by_hand.begin()
        by_hand.execute("select enter('acme')")
        assert by_hand.execute("select count(*) > 0 from job") == [(True,)]
        by_hand.commit()
        assert by_hand.execute("select count(*) from job") == [(0,)]
        by_hand.begin()
        by_hand.execute("select enter('acme')")
        assert by_hand.refusal("select 1 / 0") is not None
        by_hand.rollback()
        assert by_hand.execute("select count(*) from job") == [(0,)]


# -- the name of the schema --------------------------------------------------------------------------------


@pytest.mark.slow
def test_schemas_with_other_names_are_independent(empty_postgres_url: str) -> None:
    stores: list[Store] = [PostgresStore(empty_postgres_url, schema=name) for name in ("jobs_x", "_y2")]
    for store in stores:
        store.migrate()
    first, second = stores
    job_id = put_one(first)
    assert second.run(second.jobs.get(job_id, "*")) is None
    work(first)
    assert first.run(first.jobs.counts("*")) == {State.SUCCEEDED: 1}
    assert second.run(second.jobs.counts("*")) == {}
    for store in stores:
        check_ledger(store)
        store.close()


@pytest.mark.parametrize(
    "name",
    [
        *("", "Jobs", "1jobs", "jobs-x", 'jobs"; drop schema public; --', "jobs x", "jobs\n", "jöbs", "j" * 42),
        *("public", "pg_catalog", "pg_mine", "information_schema"),
    ],
)
def test_invalid_schema_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        PostgresStore("postgresql://nowhere/none", schema=name)
    assert caught.value.code == "invalid_schema"
