"""Times outside of the UTC years 1 to 9999 are refused by every entry point, with the code `invalid_time`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast import App, HoldfastError
from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand

pytestmark = pytest.mark.req("CX-1", "DP-9")

LATE = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(-timedelta(hours=14)))
EARLY = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))
LARGEST = datetime.max.replace(tzinfo=timezone(-timedelta(minutes=1)))

ENTRY_POINTS: dict[str, Callable[[App, datetime], Any]] = {
    "run_at": lambda app, at: app.enqueue("work", run_at=at),
    "deadline": lambda app, at: app.enqueue("work", deadline=at),
    "using": lambda app, at: app._kinds["work"].kind.using(deadline=at).enqueue(),
    "many": lambda app, at: app.enqueue_many([app.prepare("work", run_at=at)]),
    "workflow": lambda app, at: app.workflow("w").add(app._kinds["work"].kind.using(deadline=at)),
    "reschedule": lambda app, at: app.jobs.reschedule(app.enqueue("work").id, at=at),
    "handle": lambda app, at: app.enqueue("work").reschedule(at=at),
    "pause": lambda app, at: app.pauses.set(queue="q", reason="r", until=at),
    "token": lambda app, at: app.tokens.issue("ci", roles=["viewer"], expires=at),
    "since": lambda app, at: app.jobs.list(since=at),
    "until": lambda app, at: app.jobs.list(until=at),
    "groups": lambda app, at: app.dead_letters.groups(since=at),
    "repository": lambda app, at: app.repository().enqueue("work", run_at=at),
    "operation": lambda app, at: app.operations.start("cancel", since=at),
    "template": lambda app, at: app.templates.set("t", "work", run_at=at),
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
