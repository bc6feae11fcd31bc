"""Times outside of the UTC years 1 to 9999 are refused by every entry point, with the code `invalid_time`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast import App, HoldfastError
from holdfast.app.internals import kinds_of
from holdfast.errors import InvalidSetting
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand

pytestmark = pytest.mark.req("CX-1", "DP-9")

ROLES = ("holdfast_admin", "holdfast_executor", "holdfast_approver", "holdfast_producer", "holdfast_viewer")
ARGUMENTS = """
    select p.proname, a.name, a.type::regtype::text from pg_proc p,
           unnest(p.proargnames[1:p.pronargs], p.proargtypes::oid[]) a(name, type)
     where p.pronamespace = 'holdfast'::regnamespace
       and a.type::regtype::text in ('interval', 'timestamp with time zone')
       and exists (select from pg_roles r
                    where r.rolname = any (:roles) and has_function_privilege(r.oid, p.oid, 'execute'))
     order by 1, 2"""
# Arguments without a default. Each call would do something with a value in range.
CALLS = {
    "claim": "queue => 'q', holder => 'h'",
    "enqueue": "kind => 'work'",
    "heartbeat": "lease => uuid7()",
    "issue_token": "id => uuid7(), name => 'ci', roles => '{viewer}', scopes => '{}',"
    " hash => repeat('a', 64), prefix => 'hf_'",
    "keep_approval_token": "approval => uuid7(), hash => repeat('a', 64), person => null",
    "list_jobs": "want => 1",
    "lock_waits": "",
    "note_webhook_delivery": "id => uuid7(), webhook => uuid7(), message => 'm', type => 't', job => uuid7(),"
    " attempt => 1, status => 200, error_code => null, duration_ms => 1, excerpt => null",
    "open_lease": "holder => 'h'",
    "open_worker": "holder => 'h', name => 'w', for_tenant => null, kinds => null, queues => null, slots => 1,"
    " version => null, app_version => null, code => null, pins => null",
    "open_session": "token_hash => repeat('a', 64), id => uuid7(), hash => repeat('b', 64), prefix => 'hfs_'",
    "pause": "scope => 'queue', name => 'q', reason => 'r'",
    "redrive": "job => uuid7()",
    "redrive_many": "jobs => array[uuid7()]",
    "renew": "lease => uuid7()",
    "renew_lease": "lease => uuid7()",
    "reschedule": "job => uuid7()",
    "reschedule_many": "jobs => array[uuid7()]",
    "start_operation": "id => uuid7(), action => 'redrive', wanted => '{}', total => 0, capped => false",
    "reserve": "reservation => uuid7(), scope => 'resource', name => 'gpu'",
}
OUT_OF_RANGE = {
    "interval": ("8000 years", "300000 years", "-1 second", "-1 year"),
    "timestamp with time zone": ("infinity", "-infinity", "0044-03-15 BC", "10000-01-01 00:00:00+00"),
}

LATE = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(-timedelta(hours=14)))
EARLY = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
LARGEST = datetime.max.replace(tzinfo=timezone(-timedelta(minutes=1)))

ENTRY_POINTS: dict[str, Callable[[App, datetime], Any]] = {
    "run_at": lambda app, at: app.enqueue("work", run_at=at),
    "deadline": lambda app, at: app.enqueue("work", deadline=at),
    "using": lambda app, at: kinds_of(app)["work"].kind.using(deadline=at).enqueue(),
    "many": lambda app, at: app.enqueue_many([app.prepare("work", run_at=at)]),
    "workflow": lambda app, at: app.workflow("w").add(kinds_of(app)["work"].kind.using(deadline=at)),
    "reschedule": lambda app, at: app.jobs.reschedule(app.enqueue("work").id, at=at),
    "handle": lambda app, at: app.enqueue("work").reschedule(at=at),
    "pause": lambda app, at: app.pauses.set(queue="q", reason="r", until=at),
    "token": lambda app, at: app.tokens.issue("ci", roles=["viewer"], expires=at),
    "since": lambda app, at: app.jobs.list(since=at),
    "until": lambda app, at: app.jobs.list(until=at),
    "groups": lambda app, at: app.dead_letters.groups(since=at),
    "repository": lambda app, at: app.repository().enqueue("work", run_at=at),
    "operation": lambda app, at: app.operations.start("cancel", since=at),
    "template": lambda app, at: app.templates.set("t", "work", run_at=at),  # type: ignore[call-arg]
}


@pytest.fixture
def app(store: Store) -> App:
    app = App(store.url, name="tests", enqueued_by="tester")

    @app.job("work")
    async def work() -> None: ...

    return app


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_python_refuses_times_out_of_range(app: App, entry_point: str) -> None:
    for at in (LATE, EARLY, LARGEST):
        with pytest.raises(HoldfastError) as refused:
            ENTRY_POINTS[entry_point](app, at)
        assert refused.value.code in ("invalid_time", "unknown_option", "invalid_template"), refused.value
    app.close()


def test_times_just_in_range_are_stored_unchanged(app: App) -> None:
    for at in (datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC)):
        stored = app.jobs.get(app.enqueue("work", deadline=at).id)
        assert stored.deadline_at == at
    app.close()


@pytest.mark.parametrize("column", ["run_at", "deadline_at"])
def test_sql_refuses_times_out_of_range(store: Store, by_hand: ByHand, column: str) -> None:
    insert = f"insert into job (tenant, kind, {column}) values ('default', 'work', :at)"
    times: tuple[Any, ...] = ("infinity", "-infinity", "0044-03-15 BC")
    for at in (2**62, -(2**62)) if by_hand.name == "sqlite" else times:
        refusal = by_hand.refusal(insert, {"at": at})
        assert refusal is not None
        assert "out of range" in refusal


def test_sql_functions_refuse_times_and_spans_out_of_range(store: Store, by_hand: ByHand) -> None:
    """The arguments come from the catalogue. Check a new one with `out_of_time` or `check_span`."""
    if by_hand.name == "sqlite":
        pytest.skip("SQLite has no functions that callers could call")
    arguments = by_hand.execute(ARGUMENTS, {"roles": list(ROLES)})
    assert {row[0] for row in arguments} == CALLS.keys()
    infinite = ("infinity", "-infinity") if by_hand.execute("show server_version_num")[0][0] >= "170000" else ()
    executed = list[str]()
    for function, name, kind in arguments:
        for value in (*OUT_OF_RANGE[kind], *(infinite if kind == "interval" else ())):
            given = ", ".join(part for part in (CALLS[function], f"{name} => '{value}'") if part)
            by_hand.begin()
            refusal = by_hand.refusal(f"select * from {function}({given})")
            by_hand.rollback()
            if refusal is None or "is out of range" not in refusal:
                executed.append(f"{function}({name} => {value}): {refusal}")
    assert "\n".join(executed) == ""


SPANS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    # The limits of Python: worker/options.py and engine/units.py, features/limits, features/tokens, engine/units.py.
    "open_lease": ("ttl", ("10 ms", "36600 days"), ("9 ms", "36601 days")),
    "reserve": ("ttl", ("100 ms", "1 hour"), ("99 ms", "3601 seconds")),
    "issue_token": ("lasting", ("1 second", "7300 days"), ("999 ms", "7301 days")),
    "lock_waits": ("p_for", ("0", "36600 days"), ("-1 ms", "36601 days")),
}


@pytest.mark.every_case
@pytest.mark.parametrize("function", SPANS)
def test_sql_functions_have_the_limits_of_python(store: Store, by_hand: ByHand, function: str) -> None:
    if by_hand.name == "sqlite":
        pytest.skip("SQLite has no functions that callers could call")
    name, allowed, refused = SPANS[function]
    for value in (*allowed, *refused):
        given = ", ".join(part for part in (CALLS[function], f"{name} => '{value}'") if part)
        by_hand.begin()
        refusal = by_hand.refusal(f"select * from {function}({given})")
        by_hand.rollback()
        assert (refusal is None) is (value in allowed), (value, refusal)


def test_store_reports_a_span_out_of_range(store: Store) -> None:
    if store.embedded:
        pytest.skip("SQLite has no functions that check spans")
    with pytest.raises(InvalidSetting) as refused:
        store.run(store.leases.open("holder", 1e11, "default"))
    assert refused.value.code == "invalid_duration"
    assert refused.value.fix is not None


def test_sql_refuses_deep_json(store: Store, by_hand: ByHand) -> None:
    """As deep as Python allows, and one level deeper."""
    insert = "insert into job (tenant, kind, payload) values ('default', 'work', :payload)"
    for depth, fine in ((100, True), (101, False), (900, False)):
        refusal = by_hand.refusal(insert, {"payload": '{"a":' * depth + "1" + "}" * depth})
        assert (refusal is None) is fine, refusal
    many = '["[{", ' + ", ".join(["[1]"] * 500) + "]"  # many brackets, but not deep
    assert by_hand.refusal(insert, {"payload": many}) is None


@pytest.mark.parametrize(
    ("column", "values"),
    [("tags", ("[null]", "[1]", "{", "7")), ("backoff", ("{", "7", "[]"))],
)
def test_sql_refuses_invalid_lists_and_objects(
    store: Store, by_hand: ByHand, column: str, values: tuple[str, ...]
) -> None:
    if by_hand.name != "sqlite":
        values = ("{NULL}", "{{a,b},{c,d}}") if column == "tags" else ("7", "[]", '"x"')
    for value in values:
        insert = f"insert into job (tenant, kind, {column}) values ('default', 'work', :value)"
        assert by_hand.refusal(insert, {"value": value}) is not None, value
