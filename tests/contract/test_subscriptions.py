"""Subscriptions: exactly one job for each matching event (DP-13)."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest

from holdfast.engine.job import Event
from holdfast.errors import Conflict, HoldfastError, InvalidInput, InvalidSetting, Refused
from holdfast.features.agents.model import Definition
from holdfast.features.assembly import Store
from holdfast.features.events.model import Delivery, JobOptions, NewSubscription, Subscription
from holdfast.features.schedules.model import TemplateDraft
from holdfast.stores.flow import Flow, Steps
from tests.support.concurrency import together
from tests.support.direct_sql import ByHand
from tests.support.features import feed, feed_all, made_of, refusals, subscribe, tell
from tests.support.features import get_subscription as found
from tests.support.stores import BROKEN, TENANT, history, put, put_one, spec, work
from tests.support.transactions import Transaction

pytestmark = pytest.mark.req("DP-13", "DP-12")


@pytest.mark.req("DP-10", "DP-11")
@pytest.mark.parametrize("page", [1, 1000])
def test_each_matching_event_makes_one_job(store: Store, page: int) -> None:
    put_one(store, "import")
    work(store)
    subscribe(store, "after", "job.succeeded", kind="import*", options={"queue": "late", "priority": 3, "tags": ["x"]})
    mine, other = put_one(store, "import.rows", correlation_id="c-1"), put_one(store, "mail")
    work(store, want=2)
    assert feed_all(store, "after", page) == 1
    (job,) = made_of(store)
    (event,) = [each for each in history(store, mine) if each.type == "succeed"]
    assert (job.queue, job.priority, job.tags, job.depth) == ("late", 3, ("x",), 1)
    assert (job.correlation_id, job.causation_id) == ("c-1", str(event.seq))
    assert (job.enqueued_by, job.source_system) == ("subscription after", "subscription")
    event_data = job.payload["event"]
    assert (event_data["name"], event_data["job_id"], event_data["kind"], event_data["to_state"]) == (
        "job.succeed",
        mine,
        "import.rows",
        "succeeded",
    )
    assert feed_all(store, "after", page) == 0, "each event once"
    assert len(made_of(store)) == 1
    assert other not in {each.payload["event"]["job_id"] for each in made_of(store)}
    one = found(store, "after")
    assert (one.made, one.refused, one.failure) == (1, 0, None)
    assert store.run(store.subscriptions.behind(one.cursor, True, "default")) == 0


def test_subscription_starts_and_resumes_at_its_cursor(store: Store) -> None:
    put_one(store, "import")
    subscribe(store, "all", "job.enqueue", kind="import", start="beginning", job_kind="all")
    subscribe(store, "new", "job.enqueue", kind="import", job_kind="new")
    put_one(store, "import")
    assert (feed_all(store, "all"), feed_all(store, "new")) == (2, 1)
    assert store.run(store.subscriptions.pause("all", "too many", "ada", "default"))
    assert store.run(store.subscriptions.pause("new", None, "ada", "default"))
    assert store.run(store.subscriptions.pause("new", "again", "bob", "default")), "the first pause is kept"
    assert (found(store, "new").paused_by, found(store, "new").paused_reason) == ("ada", None)
    put_one(store, "import")
    assert feed(store, "all").seen == 0
    assert store.run(store.subscriptions.resume("all", False, "default"))
    assert store.run(store.subscriptions.resume("new", True, "default"))
    put_one(store, "import")
    assert (feed_all(store, "all"), feed_all(store, "new")) == (2, 1), "with and without missed events"
    assert not store.run(store.subscriptions.pause("none", None, "ada", "default"))
    assert store.run(store.subscriptions.remove("all", "default"))
    assert not store.run(store.subscriptions.remove("all", "default"))
    assert len(store.run(store.subscriptions.list("default"))) == 1


def test_application_events_match_by_name_and_data(store: Store) -> None:
    tell(store, "order.paid", '{"country": "fr", "total": 1}')
    payload = {"id": "$.id", "total": "$.data.total", "none": "$.data.x.y", "price": "$$9", "more": ["$.name", 1]}
    subscribe(store, "late", "order.*", match={"country": "fr"}, start="beginning", options={"payload": payload})
    subscribe(store, "new", "order.paid|order.shipped", job_kind="new")
    for name, data in (("order.paid", '{"country": "de"}'), ("order.shipped", '{"country": "fr", "total": 7.0}')):
        tell(store, name, data)
    tell(store, "orders", '{"country": "fr"}')
    assert (feed_all(store, "late", 1), feed_all(store, "new")) == (2, 2)
    first, second = made_of(store)
    assert first.payload | {"id": ""} == {"id": "", "total": 1, "none": None, "price": "$9", "more": ["order.paid", 1]}
    assert second.payload["total"] == 7.0
    assert first.causation_id == first.payload["id"]
    assert [job.payload["event"]["name"] for job in made_of(store, "new")] == ["order.paid", "order.shipped"]


def test_match_on_job_events_uses_their_meta(store: Store) -> None:
    subscribe(store, "broke", "job.failed", match={"error_code": "broken"})
    put_one(store)
    work(store, BROKEN)
    assert feed_all(store, "broke") == 1
    assert made_of(store)[0].payload["event"]["meta"]["error_message"] == "it broke"


@pytest.mark.req("CX-15")
def test_crash_before_the_cursor_is_saved_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(store, "after", "job.enqueue", kind="import", start="beginning")
    put(store, spec("import"), spec("import"))
    part = type(store.subscriptions)
    whole = part._advance

    def die(self: Any, whose: Subscription, cursor: str, deliveries: list[Delivery]) -> Steps[None]:
        yield from whole(self, whose, cursor, deliveries)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(part, "_advance", die)
        with pytest.raises(KeyboardInterrupt):
            feed(store, "after")
    assert made_of(store) == []
    assert found(store, "after").cursor is None
    assert feed_all(store, "after") == 2
    assert len(made_of(store)) == 2


@pytest.mark.slow
def test_concurrent_feeds_make_one_job_per_event(store: Store) -> None:
    names = ["one", "two", "three"]
    for name in names:
        subscribe(store, name, "job.enqueue", kind="import", job_kind=f"by.{name}")
    for _ in range(4):
        put(store, *(spec("import") for _ in range(5)))
        together(*(partial(_feed_thrice, store, names[n % 3], 7) for n in range(9)))
    for name in names:
        while feed(store, name).seen:
            pass
        assert len(made_of(store, f"by.{name}")) == 20
        assert found(store, name).made == 20


def _feed_thrice(store: Store, name: str, want: int) -> None:
    for _ in range(3):
        feed(store, name, want)


def test_reset_cursor_makes_no_second_job(store: Store, by_hand: ByHand) -> None:
    """The cursor was reset by hand: delivered events make no second job."""
    subscribe(store, "after", "job.enqueue", kind="import", start="beginning")
    put(store, spec("import"), spec("import"))
    assert feed_all(store, "after") == 2
    by_hand.execute("update subscription set cursor = null")
    put_one(store, "import")
    assert feed_all(store, "after") == 1
    assert len(made_of(store)) == 3


def test_delivery_key_refuses_a_second_job(store: Store, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(store, "after", "job.enqueue", kind="import", start="beginning")
    put_one(store, "import")
    assert feed_all(store, "after") == 1
    by_hand.execute("update subscription set cursor = null")

    def blind(self: object, whose: Subscription, events: list[str]) -> Steps[set[str]]:
        yield from ()
        return set()

    with monkeypatch.context() as patch:
        patch.setattr(type(store.subscriptions), "_delivered", blind)
        with pytest.raises(Conflict):
            feed(store, "after")
    assert len(made_of(store)) == 1


def test_chain_of_subscriptions_ends_at_its_depth(store: Store) -> None:
    """A job whose success makes another one of the same kind."""
    one = subscribe(store, "loop", "job.succeeded", kind="echo", job_kind="echo", max_depth=3)
    put_one(store, "echo")
    for _ in range(6):
        work(store, want=10)
        feed_all(store, "loop")
    assert [job.depth for job in made_of(store, "echo")] == [None, 1, 2, 3]
    (refused,) = refusals(store, one)
    assert (refused.refusal, refused.depth, refused.job_id) == ("too_deep", 4, None)
    assert (found(store, "loop").made, found(store, "loop").refused) == (3, 1)


def test_depth_is_inherited_by_children_and_events_of_handlers(store: Store) -> None:
    subscribe(store, "made", "job.enqueue", kind="import", job_kind="made")
    one = subscribe(store, "deeper", "job.enqueue|job.succeed", kind="child", job_kind="deeper", max_depth=1)
    two = subscribe(store, "sent", "step.done", job_kind="sent", max_depth=1)
    put_one(store, "import")
    feed_all(store, "made")
    (made,) = made_of(store, "made")
    child = put_one(store, "child", parent_id=made.id)
    assert store.run(store.jobs.get(child, "default")).depth == 1  # type: ignore[union-attr]
    tell(store, "step.done", cause=made.id)
    tell(store, "step.done")
    assert (feed_all(store, "deeper"), feed_all(store, "sent")) == (0, 1)
    assert [each.depth for each in (*refusals(store, one), *refusals(store, two))] == [2, 2]


def test_event_of_a_late_commit_is_not_missed(store: Store) -> None:
    if store.embedded:
        pytest.skip("SQLite has one writer at a time: nothing commits late")
    subscribe(store, "after", "job.enqueue", kind="mail.send")
    late = Transaction(store)
    (first,) = late.enqueue(1)
    put_one(store)
    assert feed_all(store, "after") == 1
    put_one(store)
    late.end()
    assert feed_all(store, "after") == 2
    assert first in {job.payload["event"]["job_id"] for job in made_of(store)}


def test_subscription_sees_events_of_its_own_jobs(store: Store) -> None:
    """On PostgreSQL a row lock would give the transaction an id, and its own events would count as already seen."""
    one = subscribe(store, "self", "job.enqueue", job_kind="again", max_depth=2)
    put_one(store)
    assert feed_all(store, "self") == 2
    assert [each.depth for each in refusals(store, one)] == [3]


def test_refused_jobs_are_recorded_and_the_feed_continues(store: Store, by_hand: ByHand) -> None:
    store.run(store.agents.set(Definition(id="shut", name="Shut"), "default"))
    one = subscribe(store, "after", "job.enqueue", kind="import", options={"agent": "shut"})
    store.run(store.agents.disable("shut", "it loops", "ada", "default"))
    put_one(store, "import")
    assert feed_all(store, "after") == 0
    assert [each.refusal for each in refusals(store, one)] == ["agent_disabled"]
    store.run(store.agents.enable("shut", "default"))
    put_one(store, "import")
    assert feed_all(store, "after") == 1
    store.run(store.subscriptions.failed(one.id, "it went wrong", "default"))
    assert found(store, "after").failure == "it went wrong"
    put_one(store)
    feed_all(store, "after")
    assert found(store, "after").failure is None


def test_redeclared_subscription_keeps_its_cursor(store: Store) -> None:
    subscribe(store, "after", "job.enqueue", kind="import", declared=True, job_kind="old")
    put_one(store, "import")
    again = NewSubscription.of("after", "job.enqueue", "new", kind="*port", declared=True)
    assert not store.run(store.subscriptions.set(again, "019a0000-0000-7000-8000-000000000000", "bob", "default"))
    assert feed_all(store, "after") == 1
    assert len(made_of(store, "new")) == 1
    assert found(store, "after").created_by == "ada"
    subscribe(store, "after", "job.*")
    assert (found(store, "after").pattern, found(store, "after").declared) == ("job.*", False)


@pytest.mark.req("JF-1")
def test_subscriptions_of_one_tenant_and_of_every_tenant(store: Store) -> None:
    subscribe(store, "mine", "job.enqueue", kind="import", tenant="acme", job_kind="mine")
    subscribe(store, "mine", "job.enqueue", kind="import", tenant="*", job_kind="all")
    for tenant in ("acme", "umbrella"):
        put_one(store, "import", tenant=tenant)
        tell(store, "x", tenant=tenant)
    assert (feed_all(store, "mine", tenant="acme"), feed_all(store, "mine", tenant="*")) == (1, 2)
    assert [len(made_of(store, "all", tenant)) for tenant in ("acme", "umbrella")] == [1, 1]
    assert [len(made_of(store, "mine", tenant)) for tenant in ("acme", "umbrella")] == [1, 0]
    assert [one.job_kind for one in store.run(store.subscriptions.list("acme"))] == ["mine"]
    assert len(store.run(store.subscriptions.list("*"))) == 2
    assert store.run(store.subscriptions.active("umbrella")) == []


def _read_sent(store: Store, page: int, cursor: str | None = None, tenant: str = "default") -> list[str]:
    names: list[str] = []
    while events := store.run(store.ledger.read_sent(cursor, page, tenant)):
        names += [event.name for event in events]
        cursor = events[-1].cursor
    return names


@pytest.mark.req("DP-12")
def test_application_events_are_read_in_order_from_stored_cursors(store: Store) -> None:
    for n in range(5):
        tell(store, f"event {n}")
    tell(store, "other", tenant="acme")
    for page in (1, 2, 100):
        assert _read_sent(store, page) == [f"event {n}" for n in range(5)]
    (first, *_) = store.run(store.ledger.read_sent(None, 10, "default"))
    assert _read_sent(store, 2, first.cursor) == [f"event {n}" for n in range(1, 5)]
    for wrong in ("7", "a;b;c", "x"):
        with pytest.raises(InvalidInput):
            store.run(store.ledger.read_sent(wrong, 10, "default"))
    with pytest.raises(InvalidInput):
        store.run(store.ledger.read(first.cursor, 10, "default"))
    put(store, spec(), spec(), spec())
    ledger: list[Event] = store.run(store.ledger.read(None, 1, "default"))
    assert store.run(store.ledger.save_cursor("mailer", ledger[-1].cursor, None, "default"))
    assert store.run(store.ledger.save_cursor("teller", first.cursor, None, "default"))
    seen = {each.name: (each.of, each.behind, each.more) for each in store.run(store.consumers.list("default"))}
    assert seen == {"mailer": ("jobs", 2, False), "teller": ("application", 4, False)}
    for beginning, expected in ((True, [3, 5]), (False, [0, 0])):
        for name in ("mailer", "teller"):
            assert store.run(store.consumers.reset(name, beginning, "default"))
        assert [each.behind for each in store.run(store.consumers.list("default"))] == expected
    put_one(store)
    tell(store, "news")
    assert [each.behind for each in store.run(store.consumers.list("*"))] == [1, 1]
    assert not store.run(store.consumers.reset("nobody", True, "default"))
    assert store.run(store.consumers.remove("mailer", "default"))
    assert not store.run(store.consumers.remove("mailer", "default"))
    assert [each.name for each in store.run(store.consumers.list("default"))] == ["teller"]


@pytest.mark.parametrize("pattern", ["", "*", "job.succeded", "job.zz*", "job.fail|order.paid", "job.", "a" * 600, 7])
def test_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidSetting):
        NewSubscription.of("x", pattern, "y")


def test_invalid_subscriptions_are_refused(store: Store) -> None:
    for fields in (
        {"max_depth": 0},
        {"start": "yesterday"},
        {"match": 7},
        {"options": {"nope": 1}},
        {"options": {"payload": 7}},
    ):
        with pytest.raises(InvalidSetting):
            NewSubscription.of("x", "job.*", "y", **fields)
    assert NewSubscription.of("x", "job.started", "y").pattern == "job.take|job.start"
    assert NewSubscription.of("x", "job.dead_letter", "y", kind="*").kind is None
    flow: Flow[bool] = store.subscriptions.set(
        NewSubscription(name=" ", pattern="job.*", job_kind="x"),
        "019a0000-0000-7000-8000-000000000001",
        "ada",
        "default",
    )
    with pytest.raises(Refused):
        store.run(flow)
    assert issubclass(Refused, HoldfastError)


@pytest.mark.req("DP-13", "SC-8")
def test_subscription_makes_jobs_from_a_template(store: Store) -> None:
    """The newest version each time, completed by the event; without the template the event is refused and recorded."""

    def put_template(**payload: Any) -> None:
        draft = TemplateDraft.of("notice", "mail.send", payload, {"queue": "mail", "priority": 7, "deadline": 60})
        store.run(store.templates.set(draft, "ada", TENANT))

    put_template(text="paid", to=None)
    options: JobOptions = {"template": "notice", "payload": {"to": "$.data.customer"}, "priority": 9}
    one = subscribe(store, "notices", "order.paid", "mail.send", options=options)
    tell(store, "order.paid", '{"customer": "ada"}')
    assert feed_all(store, "notices") == 1
    put_template(text="thank you", to=None)
    tell(store, "order.paid", '{"customer": "bob"}')
    assert feed_all(store, "notices") == 1
    first, second = made_of(store, "mail.send")
    assert (first.payload, first.queue, first.priority) == ({"text": "paid", "to": "ada"}, "mail", 9)
    assert second.payload == {"text": "thank you", "to": "bob"}
    assert first.deadline_at is not None
    for job, version in ((first, 1), (second, 2)):
        made = store.run(store.templates.made_from(job.id, TENANT))
        assert made is not None
        assert (made.template, made.template_version) == ("notice", version)
    store.run(store.templates.remove("notice", "ada", TENANT))
    tell(store, "order.paid", '{"customer": "eve"}')
    assert feed_all(store, "notices") == 0
    assert [each.refusal for each in refusals(store, one)] == ["template_not_found"]


DEEP = '{"a": ' + "[" * 5_000 + "]" * 5_000 + "}"


@pytest.mark.req("DP-13", "JF-1")
@pytest.mark.every_case
@pytest.mark.parametrize("match", [None, {"a": 1}], ids=["any", "matched"])
@pytest.mark.parametrize("data", ['{"a": 1e400}', '{"a": "\\u0000"}', DEEP], ids=["infinite", "nul", "deep"])
def test_event_that_json_cannot_express_does_not_stop_a_subscription(
    store: Store, data: str, match: dict[str, Any] | None
) -> None:
    """Such events come from SQL. They are refused, match nothing, or create no job; the next event is delivered."""
    subscribe(store, "paid", "order.paid", match=match)
    with contextlib.suppress(HoldfastError):
        tell(store, "order.paid", data)
    good = tell(store, "order.paid", '{"a": 1}')
    feed_all(store, "paid")
    assert [job.payload["event"]["id"] for job in made_of(store)] == [good]
    assert found(store, "paid").failure is None
