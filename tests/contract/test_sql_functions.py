"""The SQL functions for one job, as psql and other languages call them (DP-2, DP-3), through plain psycopg.

Once as an administrator of the queue (no superuser, no tenant set), once as a superuser on PostgreSQL 16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast.engine.retry import MAX_DELAY, PRESETS, Backoff
from holdfast.engine.states import State
from holdfast.errors import InvalidSetting
from holdfast.features.assembly import Store, open_store
from holdfast.features.limits.model import ReservationRequest
from holdfast.stores.postgres.errors import OURS
from tests.support.direct_sql import open_by_hand, unguarded
from tests.support.ledger import check_ledger
from tests.support.postgres_roles import OwnedDatabases, as_role
from tests.support.stores import forward, history, job, new_id, open_lease

pytestmark = pytest.mark.req("DP-2", "DP-3", "DP-20")

Row = dict[str, Any]


class Shell:
    """A SQL session, and the store to check the result."""

    def __init__(self, url: str, store: Store) -> None:
        self.store = store
        self.connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def fetch(self, sql: str, *params: object) -> Row:
        answer = self.connection.execute(sql, params).fetchone()
        assert answer is not None
        return answer

    def enqueue(self, *params: object) -> str:
        marks = ", ".join(["%s"] * len(params))
        answer = self.fetch(f"select * from holdfast.enqueue('send_receipt'{', ' if params else ''}{marks})", *params)
        assert (answer["created"], answer["refused"]) == (True, False)
        return str(answer["id"])

    def claim(self) -> Row:
        return self.fetch("select * from holdfast.claim('default', 'my-worker')")


@pytest.fixture(params=["administrator", "superuser"])
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    if request.param == "administrator":
        databases: OwnedDatabases = request.getfixturevalue("owned_databases")
        with databases.fresh() as url, closing(open_store(as_role(url, databases.owner))) as store:
            yield from _shell(as_role(url, "holdfast_admin"), store)
    else:
        url = request.getfixturevalue("postgres_url")
        with closing(open_store(url)) as store:
            yield from _shell(url, store)


def _shell(url: str, store: Store) -> Iterator[Shell]:
    opened = Shell(url, store)
    with opened.connection:
        yield opened
    check_ledger(store)


def test_readme_example(shell: Shell) -> None:
    queued = shell.fetch("""select * from holdfast.enqueue('send_receipt', '{"to": "a@b.c"}')""")
    assert queued == {
        "id": queued["id"],
        "state": "queued",
        "created": True,
        "refused": False,
        "reason": None,
        "detail": None,
    }
    claimed = shell.claim()
    assert (claimed["id"], claimed["attempt"], claimed["kind"]) == (queued["id"], 1, "send_receipt")
    assert (claimed["payload"], claimed["refused"]) == ({"to": "a@b.c"}, False)
    done = shell.fetch("select * from holdfast.succeed(%s, %s, '[1, 2]')", claimed["id"], claimed["lease"])
    assert done == {"id": queued["id"], "state": "succeeded", "refused": False, "reason": None}
    stored = job(shell.store, str(queued["id"]))
    assert (stored.tenant, stored.source_system) == ("default", "sql")
    assert stored.enqueued_by in ("holdfast_admin", "postgres")
    kept = shell.store.run(shell.store.jobs.result(stored.id, "default"))
    assert kept is not None
    assert kept.value == [1, 2]
    assert [event.actor for event in history(shell.store, stored.id)][1:] == ["my-worker", "my-worker"]


@pytest.mark.req("DP-5", "DP-10")
def test_refused_enqueue_returns_a_reason(shell: Shell) -> None:
    first = shell.fetch("select * from holdfast.enqueue('k', '{\"a\": 1}', key => 'x')")
    again = shell.fetch("select * from holdfast.enqueue('k', '{\"a\":1}', key => 'x')")
    assert (again["id"], again["created"], again["refused"]) == (first["id"], False, False)
    assert again["reason"] == "duplicate_key"
    other = shell.fetch("select * from holdfast.enqueue('k', '{\"a\": 2}', key => 'x')")
    assert (other["id"], other["refused"], other["reason"]) == (first["id"], True, "idempotency_conflict")
    orphan = shell.fetch("select * from holdfast.enqueue('k', parent_id => %s)", new_id())
    assert (orphan["id"], orphan["refused"], orphan["reason"]) == (None, True, "parent_not_found")


def test_plain_job_equals_one_that_was_checked(shell: Shell) -> None:
    """A plain job is inserted at once; any other argument takes the way of all others, with the same rows."""
    plain = shell.fetch("select * from holdfast.enqueue('k', '{\"n\": 1}', priority => 7)")
    checked = shell.fetch("select * from holdfast.enqueue('k', '{\"n\": 1}', priority => 7, backoff => '{}')")
    assert {**plain, "id": None} == {**checked, "id": None}
    differs = {"id", "job_id", "position", "created_at", "backoff", "seq", "xid", "at", "hash"}
    with psycopg.connect(shell.store.url, row_factory=dict_row) as connection:
        connection.execute("set holdfast.tenant = 'default'")
        for table, key in (("job", "id"), ("job_state", "id"), ("event", "job_id")):
            one, other = (
                connection.execute(f"select * from holdfast.{table} where {key} = %s", [answer["id"]]).fetchall()
                for answer in (plain, checked)
            )
            assert len(one) == len(other) == 1
            for row in (*one, *other):
                for name in differs & row.keys():
                    row[name] = None
            assert one == other, table


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [("null", "broken_invariant"), ("''", "broken_invariant"), ("'k', enqueued_by => ''", "broken_invariant")],
)
def test_missing_facts_are_refused_as_a_row(shell: Shell, arguments: str, reason: str) -> None:
    answer = shell.fetch(f"select * from holdfast.enqueue({arguments})")
    assert (answer["id"], answer["created"], answer["refused"], answer["reason"]) == (None, False, True, reason)


def test_null_queue_and_payload_are_the_defaults(shell: Shell) -> None:
    answer = shell.fetch(
        "select * from holdfast.enqueue('k', null, queue => null, priority => null, source_system => null)"
    )
    stored = job(shell.store, str(answer["id"]))
    assert (stored.queue, stored.priority, stored.payload, stored.source_system) == ("default", 0, {}, "sql")


def test_enqueue_accepts_every_option(shell: Shell) -> None:
    parent = shell.enqueue()
    answer = shell.fetch(
        "select * from holdfast.enqueue('k', '{\"n\": 1}', queue => 'q', priority => 7, run_at => '2031-01-02Z',"
        " deadline_at => '2032-01-02Z', tags => array['x', 'y'], parent_id => %s, external_ref => 'ext',"
        " agent => 'a', max_attempts => 2, backoff => '{\"base\": 5}', enqueued_by => 'ada',"
        " source_system => 'billing', for_tenant => 'default')",
        parent,
    )
    stored = job(shell.store, str(answer["id"]))
    assert (stored.queue, stored.priority, stored.tags, stored.agent) == ("q", 7, ("x", "y"), "a")
    assert (stored.max_attempts, stored.backoff, stored.payload) == (2, {"base": 5}, {"n": 1})
    assert (stored.enqueued_by, stored.source_system, stored.external_ref) == ("ada", "billing", "ext")
    assert (stored.parent_id, stored.correlation_id) == (parent, parent)
    assert str(stored.due_at) == "2031-01-02 00:00:00+00:00"


def test_empty_claim_returns_a_reason_and_no_lease(shell: Shell) -> None:
    answer = shell.claim()
    assert (answer["id"], answer["refused"], answer["reason"]) == (None, True, "nothing_to_do")
    shell.enqueue()
    wrong = shell.fetch("select * from holdfast.claim('default', 'w', kinds => array['other'])")
    assert wrong["reason"] == "nothing_to_do"
    assert shell.store.run(shell.store.health.get("default")).lease_active == 0


@pytest.mark.req("CX-9", "DP-22")
def test_fail_retries_by_the_jobs_policy_until_dead_letter(shell: Shell) -> None:
    forward(shell.store)
    job_id = shell.fetch(
        "select * from holdfast.enqueue('k', max_attempts => 3, backoff => %s)",
        json.dumps({"base": 10, "factor": 3, "jitter": False}),
    )["id"]
    for retry, seconds in ((1, 10), (2, 30)):
        claimed = shell.claim()
        failed = shell.fetch("select * from holdfast.fail(%s, %s, 'oops', 'no luck')", job_id, claimed["lease"])
        assert (failed["state"], failed["refused"]) == ("retry_waiting", False)
        stored = job(shell.store, str(job_id))
        now = shell.store.run(shell.store.clock.now())
        assert stored.due_at is not None
        assert (stored.retries, (stored.due_at - now).total_seconds()) == (retry, seconds)
        forward(shell.store, seconds)
        assert shell.fetch("select holdfast.promote_due() as n")["n"] == 1
    claimed = shell.claim()
    dead = shell.fetch("select * from holdfast.fail(%s, %s, 'oops', 'no luck')", job_id, claimed["lease"])
    assert (dead["state"], dead["refused"]) == ("dead_letter", False)


@pytest.mark.req("CX-9")
@pytest.mark.parametrize("policy", ["[]", '"x"'])
def test_backoff_must_be_an_object(shell: Shell, policy: str) -> None:
    answer = shell.fetch("select * from holdfast.enqueue('k', backoff => %s)", policy)
    assert (answer["refused"], answer["reason"]) == (True, "broken_invariant")
    assert "backoff_object" in answer["detail"]


@pytest.mark.req("CX-9")
@pytest.mark.parametrize("policy", ['{"factor": 0}', '{"base": "x"}', '{"base": 1e300, "cap": 1e300}'])
def test_invalid_backoff_does_not_prevent_a_failure(shell: Shell, policy: str) -> None:
    """A job of an earlier release, or a hand-written one."""
    job_id = shell.enqueue()
    with closing(open_by_hand(shell.store.url)) as by_hand, unguarded(by_hand, "job"):
        by_hand.execute("update job set backoff = :policy", {"policy": policy})
    claimed = shell.claim()
    failed = shell.fetch("select * from holdfast.fail(%s, %s, 'oops', 'no luck')", job_id, claimed["lease"])
    assert (failed["state"], failed["refused"]) == ("retry_waiting", False)


def test_permanent_failure_becomes_a_dead_letter_at_once(shell: Shell) -> None:
    shell.enqueue()
    claimed = shell.claim()
    answer = shell.fetch(
        "select * from holdfast.fail(%s, %s, 'bad_input', 'no such user', permanent => true)",
        *(claimed["id"], claimed["lease"]),
    )
    assert answer["state"] == "dead_letter"
    assert job(shell.store, str(claimed["id"])).error_code == "bad_input"


@pytest.mark.req("DP-7", "CX-8")
def test_every_operation_refuses_a_stale_or_foreign_lease(shell: Shell) -> None:
    shell.enqueue()
    claimed = shell.claim()
    job_id, lease = claimed["id"], claimed["lease"]
    saved = shell.fetch("select * from holdfast.progress(%s, %s, '{\"page\": 3}')", job_id, lease)
    assert (saved["refused"], saved["reason"]) == (False, None)
    assert shell.store.run(shell.store.jobs.checkpoints(str(job_id), "default")) == {"progress": {"page": 3}}
    assert shell.fetch("select * from holdfast.renew(%s, '1 min')", lease)["refused"] is False
    other = open_lease(shell.store, tenant="default")

    def refusals(token: object) -> list[tuple[bool, str]]:
        calls = ("succeed(%s, %s)", "fail(%s, %s, 'c', 'm')", "progress(%s, %s, '1')", "release(%s, %s)")
        answers = [shell.fetch(f"select * from holdfast.{call}", job_id, token) for call in calls]
        return [(answer["refused"], answer["reason"]) for answer in answers]

    for token in (other, new_id(), None):
        assert refusals(token) == [(True, "stale_lease")] * 4
    assert shell.fetch("select * from holdfast.succeed(%s, %s)", job_id, lease)["refused"] is False
    assert refusals(lease) == [(True, "stale_lease")] * 4
    assert shell.fetch("select * from holdfast.renew(%s)", lease)["reason"] == "stale_lease"
    missing = shell.fetch("select * from holdfast.succeed(%s, %s)", new_id(), lease)
    assert (missing["state"], missing["refused"], missing["reason"]) == (None, True, "not_found")


def test_leased_job_can_be_released(shell: Shell) -> None:
    job_id = shell.enqueue()
    lease = shell.fetch("select * from holdfast.open_lease('w')")["lease"]
    shell.fetch("select * from holdfast.claim_many(%s, array['default'], 1, begin => false)", lease)
    assert shell.fetch("select * from holdfast.release(%s, %s)", job_id, lease)["refused"] is False
    assert job(shell.store, job_id).state == State.QUEUED


@pytest.mark.req("CX-11", "DP-15")
def test_operator_functions(shell: Shell) -> None:
    job_id = shell.enqueue()

    def operate(call: str, *params: object) -> tuple[str | None, bool, str | None]:
        answer = shell.fetch(f"select * from holdfast.{call}", *params)
        return answer["state"], answer["refused"], answer["refusal"]

    assert operate("redrive(%s)", job_id) == ("queued", True, "not_dead")
    claimed = shell.claim()
    shell.fetch("select * from holdfast.fail(%s, %s, 'c', 'm', true)", job_id, claimed["lease"])
    assert operate("discard(%s, ' ')", job_id) == (None, True, "reason_required")
    assert operate("reschedule(%s)", job_id) == ("dead_letter", True, "not_waiting")
    assert operate("redrive(%s, 'try again', 'ada', max_attempts => 7)", job_id) == ("queued", False, None)
    assert operate("reschedule(%s, delay => '1 hour', reason => 'later')", job_id) == ("queued", False, None)
    assert operate("reschedule(%s, '2090-01-01', max_attempts => 1)", job_id) == ("queued", False, None)
    assert job(shell.store, job_id).max_attempts == 1
    other = shell.enqueue()
    assert operate("move(%s, 'after', %s, reason => 'not yet')", job_id, other) == ("queued", False, None)
    assert operate("move(%s, priority => 5)", job_id) == ("queued", False, None)
    assert job(shell.store, job_id).priority == 5
    assert operate("move(%s, 'first')", new_id()) == (None, True, "not_found")
    for place in ("'between'", "'before'", "'first', %(other)s", "null", "'first', priority => 99999"):
        with pytest.raises(psycopg.Error) as wrong:
            shell.connection.execute(f"select * from holdfast.move(%(job)s, {place})", {"job": job_id, "other": other})
        assert wrong.value.sqlstate == "ZH010", place
    assert operate("cancel(%s, 'enough', 'ada')", job_id) == ("cancelled", False, None)
    assert operate("cancel(%s)", job_id) == ("cancelled", True, "already_finished")
    assert operate("discard(%s, 'because')", job_id) == ("cancelled", True, "not_dead")
    assert operate("cancel(%s)", new_id()) == (None, True, "not_found")
    last = history(shell.store, job_id)[-1]
    assert (last.actor, last.meta) == ("ada", {"reason": "enough"})


def test_read_functions(shell: Shell) -> None:
    first, second = shell.enqueue(), shell.enqueue()
    assert str(shell.fetch("select * from holdfast.get_job(%s)", first)["id"]) == first
    assert str(shell.fetch("select * from holdfast.list_jobs(want => 1)")["id"]) == second
    assert str(shell.fetch("select * from holdfast.list_jobs('queued', 'send_receipt', %s)", second)["id"]) == first
    assert shell.fetch("select * from holdfast.history(%s)", first)["type"] == "enqueue"
    health = shell.fetch("select holdfast.health() as h")["h"]
    assert (health["backlog"], health["in_progress"], health["lease_active"]) == (2, 0, 0)
    assert set(health) >= {"dead_letter_open", "oldest_queued_age_s"}
    assert (health["approvals_open"], health["oldest_approval_age_s"]) == (0, None)


# -- refusals keep the caller's transaction usable ------------------------------------------------------------------


REFUSED = {
    "paused": ("select holdfast.pause('queue', 'mail', 'repairs', refuse_enqueue => true)", "queue => 'mail'"),
    "tenant_full": ("""select holdfast.set_tenant('default', '{"max_pending": 0}')""", ""),
    "payload_forbidden": (
        "select holdfast.set_payload_rule('k', signal_only => true, forbidden => array['card'])",
        """payload => '{"card": 1}'""",
    ),
    "broken_invariant": ("select 1", "enqueued_by => ' '"),
    "payload_too_deep": ("select 1", f"""payload => '{{"a": {"[" * 300}{"]" * 300}}}'"""),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused_enqueue_leaves_the_callers_transaction_usable(shell: Shell, reason: str) -> None:
    prepare, arguments = REFUSED[reason]
    shell.fetch(prepare)
    call = f"select * from holdfast.enqueue('k'{', ' if arguments else ''}{arguments}"
    with shell.connection.transaction():
        refused = shell.fetch(call + ")")
        assert (refused["id"], refused["created"], refused["refused"], refused["reason"]) == (None, False, True, reason)
        assert refused["detail"]
        kept = shell.fetch("select * from holdfast.enqueue('other', queue => 'free', for_tenant => 'elsewhere')")
        assert kept["created"], "the transaction is still usable"
    assert job(shell.store, str(kept["id"]), tenant="elsewhere").state is State.QUEUED
    with pytest.raises(psycopg.Error) as raised:
        shell.fetch(call + ", strict => true)")
    assert raised.value.sqlstate
    assert shell.fetch("select holdfast.refusal_reason(%s) as reason", raised.value.sqlstate)["reason"] == reason


def test_sql_reasons_are_the_codes_of_python(shell: Shell) -> None:
    for state, (_, code) in OURS.items():
        result = shell.fetch("select holdfast.refusal_reason(%s) as reason", state)["reason"]
        assert result in (code, None), state


@pytest.mark.req("DP-6")
def test_claim_is_refused_for_unregistered_executors(shell: Shell) -> None:
    shell.fetch("select holdfast.set_executor('reports')")
    shell.enqueue()
    refused = shell.claim()
    assert (refused["refused"], refused["reason"], refused["id"]) == (True, "executor_refused", None)
    taken = shell.fetch("select * from holdfast.claim('default', 'my-worker', executor => 'reports')")
    assert (taken["refused"], taken["attempt"]) == (False, 1)
    ended = shell.fetch("select * from holdfast.succeed(%s, %s)", taken["id"], taken["lease"])
    assert (ended["state"], ended["refused"]) == ("succeeded", False)
    left = shell.fetch("select count(*) from holdfast.list_jobs('in_progress')")
    assert left["count"] == 0


@pytest.mark.req("DP-24")
def test_list_jobs_filters_and_references(shell: Shell) -> None:
    made = shell.fetch(
        "select * from holdfast.enqueue('report', queue => 'slow', tags => array['monthly'], correlation_id => 'c-1',"
        " causation_id => 'event-7', source_ref => 's3://in', target_ref => 's3://out', payload_ref => 's3://body')"
    )
    shell.enqueue()
    row = shell.fetch("select * from holdfast.get_job(%s)", made["id"])
    assert (row["source_ref"], row["target_ref"], row["payload_ref"]) == ("s3://in", "s3://out", "s3://body")
    assert row["causation_id"] == "event-7"
    for only in (
        *("in_queue => 'slow'", "with_tag => 'monthly'", "with_correlation => 'c-1'", "of_kind => 'report'"),
        *("created_from => %s", "created_until => %s"),
    ):
        times = [row["created_at"]] if "%s" in only else []
        rows = shell.connection.execute(f"select id from holdfast.list_jobs({only})", times).fetchall()
        expected = {"created_from": 2, "created_until": 0}.get(only.split(" ")[0], 1)
        assert len(rows) == expected, only


@pytest.mark.req("DP-23", "DP-24")
def test_claim_returns_jobs_of_its_executor_only(shell: Shell) -> None:
    made = shell.fetch("select * from holdfast.enqueue('train', executor => 'gpu-1')")
    assert shell.fetch("select * from holdfast.get_job(%s)", made["id"])["executor"] == "gpu-1"
    (listed,) = shell.connection.execute("select * from holdfast.list_jobs(for_executor => 'gpu-1')").fetchall()
    assert listed["id"] == made["id"]
    assert shell.claim()["reason"] == "nothing_to_do"
    taken = shell.fetch("select * from holdfast.claim('default', 'me', executor => 'gpu-1')")
    assert (taken["id"], taken["refused"]) == (made["id"], False)
    for blank in ("", "*", "x" * 101):
        answer = shell.fetch("select * from holdfast.enqueue('train', executor => %s)", blank)
        assert (answer["refused"], answer["reason"]) == (True, "broken_invariant")


@pytest.mark.req("DP-26")
def test_redrive_accepts_a_delay(shell: Shell) -> None:
    job_id = shell.enqueue()
    taken = shell.claim()
    shell.fetch("select * from holdfast.fail(%s, %s, 'broken', 'it is', permanent => true)", job_id, taken["lease"])
    answer = shell.fetch("select * from holdfast.redrive(%s, 'later', delay => '2 hours')", job_id)
    assert (answer["state"], answer["refused"]) == ("queued", False)
    row = shell.fetch("select due_at - now() as wait from holdfast.get_job(%s)", job_id)
    assert 7000 < row["wait"].total_seconds() <= 7200
    assert shell.claim()["reason"] == "nothing_to_do"
    answer = shell.fetch("select * from holdfast.redrive_many(array[%s]::uuid[], delay => '2 hours')", job_id)
    assert (answer["refused"], answer["refusal"]) == (True, "not_dead")


@pytest.mark.req("DP-19")
def test_health_in_sql_does_not_count_the_holder_of_a_reservation(shell: Shell) -> None:
    run, held = shell.store.run, new_id()
    run(shell.store.reservations.set(ReservationRequest(held, "resource", "printer", 60), "ada", "default"))
    run(shell.store.reservations.record(held, "calibrate", "ada", "default"))
    health = shell.fetch("select holdfast.health() as h")["h"]
    assert (health["in_progress"], health["lease_active"]) == (1, 0)
    run(shell.store.leases.open("worker-7", 60, "default"))
    assert shell.fetch("select holdfast.health() as h")["h"]["lease_active"] == 1


@pytest.mark.req("CX-19", "CX-9")
@pytest.mark.parametrize("payload", ["[1]", '"x"', "1", "null"])
def test_enqueue_refuses_a_payload_that_is_no_object(shell: Shell, payload: str) -> None:
    answer = shell.fetch("select * from holdfast.enqueue('mail', %s::json)", payload)
    assert (answer["refused"], answer["reason"], answer["id"]) == (True, "invalid_arguments", None)


@pytest.mark.req("CX-9")
@pytest.mark.parametrize(
    "backoff",
    [
        '{"base": -1}',
        '{"base": "1"}',
        '{"factor": 0.5}',
        '{"cap": 1e9}',
        '{"head": 1.5}',
        '{"jitter": 1}',
        '{"base": null}',
        '{"base": [5]}',
        '{"jitter": [true]}',
    ],
)
def test_enqueue_refuses_a_malformed_backoff(shell: Shell, backoff: str) -> None:
    answer = shell.fetch("select * from holdfast.enqueue('mail', backoff => %s::jsonb)", backoff)
    assert (answer["refused"], answer["reason"]) == (True, "broken_invariant")
    assert "backoff_bounded" in answer["detail"]
    with pytest.raises(InvalidSetting):
        Backoff.from_json(json.loads(backoff))


@pytest.mark.req("CX-9")
@pytest.mark.parametrize("backoff", ["{}", '{"cap": 60}', '{"base": 0, "factor": 1, "head": 2, "jitter": false}'])
def test_enqueue_accepts_a_backoff_with_some_of_the_keys(shell: Shell, backoff: str) -> None:
    assert shell.fetch("select * from holdfast.enqueue('mail', backoff => %s::jsonb)", backoff)["created"]


@pytest.mark.req("CX-22", "DP-20")
def test_external_reference_in_a_session_with_backslash_escapes(shell: Shell) -> None:
    job = shell.enqueue()
    shell.connection.execute("set standard_conforming_strings = off")
    assert not shell.fetch("select * from holdfast.set_external_ref(%s, 'crm-1')", job)["refused"]
    with pytest.raises(psycopg.Error, match="1 to 255 characters"):
        shell.fetch("select * from holdfast.set_external_ref(%s, ' ')", job)


@pytest.mark.req("CX-9")
def test_enqueue_accepts_every_backoff_of_the_library(shell: Shell) -> None:
    for backoff in (*PRESETS.values(), Backoff(MAX_DELAY, 1_000, MAX_DELAY, head=100), Backoff(0, 1, 0)):
        answer = shell.fetch(
            "select * from holdfast.enqueue('mail', backoff => %s::jsonb)", json.dumps(backoff.to_json())
        )
        assert answer["refused"] is False


@pytest.mark.req("HF-6")
def test_send_event_answers_for_every_job_and_refuses_an_unknown_one(shell: Shell) -> None:
    known = shell.enqueue()
    sent = shell.fetch("select * from holdfast.send_event('paid', '{}', job => %s)", known)
    assert (sent["created"], sent["refused"], sent["reason"]) == (True, False, None)
    unknown = shell.fetch("select * from holdfast.send_event('paid', '{}', key => 'k', job => %s)", new_id())
    assert (unknown["id"], unknown["refused"], unknown["reason"]) == (None, True, "not_found")
    with pytest.raises(psycopg.Error, match="data_is_object"):
        shell.fetch("select * from holdfast.send_event('paid', '[]')")
