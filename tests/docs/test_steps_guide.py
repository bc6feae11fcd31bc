"""Each block of the steps guide runs on both stores and does what the text says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from holdfast import App, Context, State
from holdfast.app.internals import session_of
from tests.docs.guide_blocks import blocks, finish, later, run
from tests.support.workers import work_off

pytestmark = [pytest.mark.req("HF-6", "CX-8"), pytest.mark.slow]


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with closing(App(url, name="guide", enqueued_by="tester")) as app:
        yield app


class World:
    """The external functions of the guide; they record their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def charge(self, number: int) -> str:
        self.calls.append("charge")
        return f"receipt {number}"

    async def ship(self, number: int) -> str:
        self.calls.append("ship")
        return f"parcel-{number}"

    def send_mail(self, number: int, words: str) -> str:
        self.calls.append(f"mail {number}: {words}")
        return words


def steps(app: App, job_id: str) -> list[tuple[int, str, str, Any]]:
    stored = session_of(app).run(session_of(app).store.steps.list(job_id, "default"))
    return [(step.n, step.kind, step.name, step.value) for step in stored]


def first_order(app: App, block: str) -> None:
    world = World()
    names = run(block, app, charge=world.charge, ship=world.ship, send_mail=world.send_mail)
    handle = names["order"].enqueue(7)
    work_off(app)
    job = handle.get()
    assert (job.state, job.attempt, job.retries, world.calls) == (State.RETRY_WAITING, 1, 0, ["charge"])
    app.jobs.reschedule(handle.id)  # it runs, is not due yet, and sleeps again
    work_off(app)
    assert (handle.state(), world.calls) == (State.RETRY_WAITING, ["charge"])
    later(app, timedelta(hours=2, seconds=1))
    while world.calls != ["charge", "ship"]:
        work_off(app)
    assert handle.state() is State.RETRY_WAITING
    assert app.send_event("delivered", {"parcel": "parcel-7", "door": "the back door"}).woke == 1
    assert finish(app, handle) == "receipt 7"
    assert world.calls == ["charge", "ship", "mail 7: Your parcel is at the back door."]
    assert [name for _, _, name, _ in steps(app, handle.id)] == ["charge", "sleep", "ship", "delivered", "thank"]


def idempotency_key_of_a_step(app: App, block: str) -> None:
    class Bank:
        def __init__(self) -> None:
            self.keys: list[str] = []

        def charge(self, amount: int, idempotency_key: str) -> str:
            self.keys.append(idempotency_key)
            if len(self.keys) == 1:
                raise ConnectionError("charged, but the answer was lost")
            return f"charged {amount}"

    bank = Bank()
    charge = run(block, app, bank=bank)["charge"]

    @app.job()
    async def pay(ctx: Context) -> str:
        return await ctx.step("charge", charge, 7)

    handle = pay.enqueue()
    assert finish(app, handle) == "charged 100"
    assert bank.keys == [f"default:pay:{handle.id}:1"] * 2


def step_value_is_recorded(app: App, block: str) -> None:
    world, hours = World(), iter([9, 20])
    names = run(block, app, send_mail=world.send_mail, current_hour=lambda: next(hours))
    assert finish(app, names["greet"].enqueue()) == "Good morning"
    assert world.calls == ["mail 7: Good morning"]


def event_with_timeout(app: App, block: str) -> None:
    world = World()
    names = run(block, app, send_mail=world.send_mail)
    paid, unpaid = names["invoice"].enqueue(7), names["invoice"].enqueue(8)
    work_off(app)
    run(next(block for block in blocks("steps") if "send_event" in block), app)
    assert finish(app, paid) == "paid 120 by tester"
    later(app, timedelta(days=15))
    assert finish(app, unpaid) == "you have not paid"


def event_with_key(app: App, block: str) -> None:
    run(block, app)
    assert app.send_event("payment", {"invoice": 7, "amount": 120}, key="bank-4711").created is False


def concurrent_steps(app: App, block: str) -> None:
    calls: list[str] = []

    async def ask_shop(shop: str, item: str) -> int:
        calls.append(shop)
        if calls == ["north", "south"]:
            raise ConnectionError("south does not answer")
        return {"north": 30, "south": 20}[shop]

    names = run(block, app, ask_shop=ask_shop)
    assert finish(app, names["prices"].enqueue("cherries")) == 20
    assert calls == ["north", "south", "south"]


def retry_policy_of_a_step(app: App, block: str) -> None:
    calls: list[str] = []

    def download(url: str) -> str:
        calls.append(url)
        if url == "nonsense":
            raise ValueError("no such thing")
        if len(calls) < 3:
            raise ConnectionError("not yet")
        return "page"

    names = run(block, app, download=download)
    handle = names["fetch"].enqueue("there")
    assert finish(app, handle) == "page"
    assert (len(calls), handle.get().retries) == (3, 0)
    wrong = names["fetch"].enqueue("nonsense")
    work_off(app)
    retries = wrong.get().retries  # the step gives up at once; the job is retried, after a delay of random length
    assert retries >= 1
    assert calls[3:] == ["nonsense"] * retries


def caught_failure(app: App, block: str) -> None:
    class NoRoom(Exception):
        pass

    calls: list[str] = []

    def book_hotel(number: int) -> str:
        calls.append("hotel")
        raise NoRoom("all rooms are taken")

    def cancel_flight(flight: str) -> None:
        calls.append(f"cancel {flight}")

    names = run(block, app, NoRoom=NoRoom, book_flight=lambda number: "LH7", book_hotel=book_hotel)
    names["cancel_flight"] = cancel_flight
    handle = names["trip"].enqueue(7)
    assert finish(app, handle) == "no room"
    assert calls == ["hotel", "cancel LH7"]


def checkpoint(app: App, block: str) -> None:
    written: list[list[int]] = []

    def batches(path: str, after: int) -> Iterator[list[int]]:
        for start in range(after, 30, 10):
            yield list(range(start, start + 10))

    async def store(batch: list[int]) -> None:
        written.append(batch)
        if len(written) == 2:
            raise ConnectionError("written, and not noted")

    names = run(block, app, batches=batches, store=store)
    assert finish(app, names["import_rows"].enqueue("rows.csv")) == 30
    assert [batch[0] for batch in written] == [0, 10, 10, 20]


def sync_handler(app: App, block: str) -> None:
    world = World()
    names = run(block, app, charge=world.charge, ship=world.ship, send_mail=world.send_mail)
    handle = names["order"].enqueue(7)
    work_off(app)
    assert (handle.state(), world.calls) == (State.RETRY_WAITING, ["charge"])
    later(app, timedelta(hours=2, seconds=1))
    assert finish(app, handle) == "receipt 7, parcel-7, thank you"
    assert sorted(world.calls) == ["charge", "mail 7: thank you", "ship"]


def patched_step(app: App, block: str) -> None:
    world = World()
    with closing(App(session_of(app).store.url, name="before", enqueued_by="tester")) as before:

        @before.job("order")
        async def order(ctx: Context, number: int) -> str:
            paid = await ctx.step("charge", world.charge, number)
            await ctx.sleep("2h")
            return paid

        old = order.enqueue(1)
        work_off(before)
    names = run(block, app, charge=world.charge, check_stock=lambda number: world.calls.append("check"))
    new = names["order"].enqueue(2)
    work_off(app)
    later(app, timedelta(hours=2, seconds=1))
    assert (finish(app, old), finish(app, new)) == ("receipt 1", "receipt 2")
    assert world.calls == ["charge", "check", "charge"]
    assert [name for _, _, name, _ in steps(app, old.id)] == ["charge", "sleep"]
    assert [name for _, _, name, _ in steps(app, new.id)] == ["check stock", "check", "charge", "sleep"]


CHECKS: list[Callable[[App, str], None]] = [
    first_order,
    idempotency_key_of_a_step,
    step_value_is_recorded,
    event_with_timeout,
    event_with_key,
    concurrent_steps,
    retry_policy_of_a_step,
    caught_failure,
    checkpoint,
    sync_handler,
    patched_step,
]


@pytest.mark.parametrize("number", range(len(CHECKS)), ids=[check.__name__ for check in CHECKS])
def test_block_does_what_the_guide_says(app: App, number: int) -> None:
    CHECKS[number](app, blocks("steps")[number])


def test_every_block_is_tested() -> None:
    assert len(blocks("steps")) == len(CHECKS)


def test_recorded_result_of_another_type_is_rejected(app: App) -> None:
    """As the guide says of a function whose return type changed."""

    def number() -> Any:
        return "seven"

    @app.job("count")
    async def count(ctx: Context) -> None:
        await ctx.step("number", number)
        await ctx.wait_for_event("go")

    handle = count.enqueue()
    work_off(app)
    app.send_event("go")
    with closing(App(session_of(app).store.url, name="after", enqueued_by="tester")) as after:

        def whole_number() -> int:
            return 7

        @after.job("count")
        async def count_now(ctx: Context) -> None:
            await ctx.step("number", whole_number)
            await ctx.wait_for_event("go")

        work_off(after)
    assert (handle.state(), handle.get().error_code) == (State.DEAD_LETTER, "invalid_result")
