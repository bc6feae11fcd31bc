"""Dead letters and bulk operations through the public API."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App, Reject, Retry, State
from holdfast.app.internals import session_of
from holdfast.errors import Conflict, InvalidArguments, InvalidInput, InvalidSetting, NotFound, WaitTimeout
from tests.app.conftest import NewApp
from tests.support.waiting import until
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("DP-15")


def charge(order: int) -> None:
    raise Reject("card_refused", f"order {order} was refused")


def broken_app(new_app: NewApp) -> App:
    app = new_app()

    @app.job(retry=Retry(max_attempts=1))
    def pay(order: int) -> None:
        if order < 100:
            charge(order)

    @app.job(retry=Retry(max_attempts=1), queue="slow")
    def ship(order: int) -> None:
        raise OSError(f"no room for {order}")

    for order in range(5):
        app.enqueue("pay", {"order": order})
    app.enqueue("ship", {"order": 7})
    work_off(app, queues=("default", "slow"))
    return app


def test_failures_with_one_cause_form_a_group_that_is_redriven_as_one(new_app: NewApp) -> None:
    app = broken_app(new_app)
    pays, ships = app.dead_letters.groups(order="count")
    assert (pays.kind, pays.open, pays.error_code) == ("pay", 5, "card_refused")
    assert pays.frame == f"{__name__}:charge"
    assert (ships.kind, ships.frame) == ("ship", f"{__name__}:broken_app.ship")
    assert app.dead_letters.groups(queue="slow") == [ships]
    assert app.dead_letters.note(pays.fingerprint, "the bank is down").note == "the bank is down"
    page = app.dead_letters.jobs(pays.fingerprint, limit=3)
    assert page + app.dead_letters.jobs(pays.fingerprint, before=page[-1].id) == app.jobs.list(kind="pay")
    assert any(f"group {pays.fingerprint}" in each.says for each in app.jobs.why(page[0].id).reasons)
    started = app.dead_letters.redrive(pays.fingerprint, reason="the bank is back", rate=1000)
    assert (started.state, started.total) == ("running", 5)
    with working(app):
        over = app.operations.wait(started.id, timeout=20)
        assert (over.state, over.done) == ("done", 5)
        until(lambda: app.dead_letters.group(pays.fingerprint).open == 5, "all of them are dead letters again")
    assert app.dead_letters.group(pays.fingerprint).times == 10
    gone = app.dead_letters.discard(reason="not needed", kind="pay")
    assert app.operations.run(gone.id).done == 5
    assert app.dead_letters.groups() == [ships]
    assert [each.id for each in app.operations.list()] == [gone.id, started.id]


def test_async_forms_group_redrive_and_discard(new_app: NewApp) -> None:
    app = broken_app(new_app)

    async def resolve() -> None:
        ships, _ = sorted(await app.dead_letters.agroups(), key=lambda each: each.open)
        assert await app.dead_letters.agroup(ships.fingerprint) == ships
        assert (await app.dead_letters.anote(ships.fingerprint, "full")).noted_by == "tester"
        (job,) = await app.dead_letters.ajobs(ships.fingerprint)
        new = await app.dead_letters.aredrive_as(job.id, {"order": 8})
        assert (await app.jobs.aget(new)).payload == {"order": 8}
        started = await app.dead_letters.aredrive(kind="pay")
        assert (await app.operations.arun(started.id)).done == 5
        last = await app.operations.astart("cancel", kind="pay", rate=0.1)
        assert await app.operations.aget(last.id) == last
        assert (await app.operations.acancel(last.id, reason="no")).cancelled_reason == "no"
        assert len(await app.operations.alist()) == 2
        assert (await app.operations.arun((await app.dead_letters.adiscard(reason="x")).id)).total == 0
        await session_of(app).store.leave_loop()

    asyncio.run(resolve())


def test_redrive_with_another_payload_creates_a_new_job(new_app: NewApp) -> None:
    app = broken_app(new_app)
    old = app.jobs.list(kind="pay")[0]
    with pytest.raises(InvalidArguments):
        app.dead_letters.redrive_as(old.id, {"amount": 1})
    new = app.dead_letters.redrive_as(old.id, {"order": 700}, reason="it was the number")
    assert app.dead_letters.redrive_as(old.id, {"order": 800}) == new, "a second redrive returns the same job"
    work_off(app)
    assert app.jobs.get(new).state is State.SUCCEEDED
    assert app.jobs.get(old.id).state is State.CANCELLED
    with pytest.raises(Conflict, match="not_dead"):
        app.dead_letters.redrive_as(new, {"order": 1})
    flow = app.workflow("w")
    flow.add("pay", {"order": 1})
    flow.start()
    work_off(app)
    with pytest.raises(Conflict, match="in_workflow"):
        app.dead_letters.redrive_as(app.jobs.list(kind="pay")[0].id, {"order": 1})


def test_invalid_input_is_refused_with_its_code(new_app: NewApp) -> None:
    app = new_app()
    with pytest.raises(NotFound, match="group_not_found"):
        app.dead_letters.redrive("nothing")
    with pytest.raises(NotFound, match="group_not_found"):
        app.dead_letters.note("nothing", "x")
    with pytest.raises(InvalidInput, match="invalid_note"):
        app.dead_letters.note("nothing", " ")
    with pytest.raises(InvalidInput, match="reason_required"):
        app.dead_letters.discard(reason=" ")
    with pytest.raises(InvalidInput, match="invalid_cursor"):
        app.dead_letters.groups(after="x")
    for options in ({"rate": 0}, {"rate": "5"}, {"state": "x"}, {"nothing": 1}, {"since": 7}, {"max_attempts": 3}):
        with pytest.raises(InvalidSetting):
            app.operations.start("cancel", **options)
    with pytest.raises(InvalidSetting, match="unknown_action"):
        app.operations.start("move")  # type: ignore[arg-type]
    started = app.operations.start("cancel", rate=0.001, everything=True)
    with pytest.raises(WaitTimeout):
        app.operations.wait(started.id, timeout=0)
    app.operations.cancel(started.id)
    with pytest.raises(Conflict, match="operation_over"):
        app.operations.cancel(started.id)
    with pytest.raises(NotFound, match="operation_not_found"):
        app.operations.cancel("01a1de74-eb8c-70f1-843b-cac5f6817387")
