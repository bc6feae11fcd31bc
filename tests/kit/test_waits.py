"""Children, races, branches and recorded values in a kit, on both stores (HF-16)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from holdfast import App, Backoff, Cancel, Context, EventTimeout, Reject, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError, JobFailed
from holdfast.features.jobs.handle import Handle
from holdfast.testing import Kit
from tests.support.ledger import check_ledger

pytestmark = pytest.mark.req("HF-16")

app = App("postgresql://user@127.0.0.1:1/none")
done: list[Any] = []
AGAIN = Retry(max_attempts=3, backoff=Backoff(base=0.0, cap=0.0, jitter=False))


@pytest.fixture
def kit(kit_url: str | None) -> Iterator[Kit]:
    done.clear()
    with Kit(app, kit_url, timeout=60) as kit:
        yield kit
        check_ledger(session_of(app).store)


def note(what: Any) -> Any:
    done.append(what)
    return what


def steps_of(handle: Handle[Any]) -> list[tuple[str, str, bool]]:
    return [(step.kind, step.name, step.over) for step in handle.steps()]


# --- children ---


@app.job()
async def leaf(number: int) -> int:
    done.append(f"leaf {number}")
    if number < 0:
        raise Reject("negative", "it is negative")
    return number * 2


@app.job(retry=AGAIN)
async def tree(ctx: Context, numbers: list[int]) -> list[int]:
    children = [await ctx.spawn(leaf, number) for number in numbers]
    return await ctx.gather(*[ctx.result_of(child) for child in children])


@app.job(retry=AGAIN)
def sync_tree(ctx: SyncContext, numbers: list[int]) -> list[int]:
    children = [ctx.spawn(leaf, number) for number in numbers]
    return ctx.gather(*[ctx.later.result_of(child) for child in children])


FORMS = pytest.mark.parametrize("kind", [tree, sync_tree], ids=["async", "thread"])


@pytest.mark.every_case
@FORMS
def test_job_waits_for_its_children_with_one_wake_up(kit: Kit, kind: Any) -> None:
    handle = kind.enqueue([1, 2, 3, 4, 5])
    kit.drain()
    assert handle.result() == [2, 4, 6, 8, 10]
    assert sorted(done) == [f"leaf {n}" for n in range(1, 6)]
    # The waiting job continues when the last child has ended, not once for each.
    assert handle.get().attempt == 2
    assert [child.parent_id for child in kit.enqueued(leaf)] == [handle.id] * 5


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after", "saved"])
@FORMS
def test_child_is_made_once_although_the_worker_is_lost(kit: Kit, kind: Any, when: Any) -> None:
    kit.crash_at("spawn leaf", when)
    handle = kind.enqueue([1, 2])
    kit.drain()
    assert (handle.result(), handle.get().crashes) == ([2, 4], 1)
    assert (sorted(done), len(kit.enqueued(leaf))) == (["leaf 1", "leaf 2"], 2)


@pytest.mark.every_case
@FORMS
def test_failure_of_a_child_is_raised(kit: Kit, kind: Any) -> None:
    handle = kind.enqueue([1, -1])
    kit.drain(check=False)
    job = handle.get()
    assert (job.state, job.retries) == (State.DEAD_LETTER, 2)
    assert "it is negative (negative)" in str(job.error_message)
    with pytest.raises(JobFailed):
        handle.result()


@app.job(retry=AGAIN)
async def careful(ctx: Context) -> str:
    child = await ctx.spawn(leaf, -1)
    try:
        await ctx.result_of(child)
    except JobFailed as error:
        await ctx.step("tell", note, error.code)
        await ctx.sleep("1h")
        return "it failed"
    return "it worked"


def test_caught_failure_of_a_child_is_recorded(kit: Kit) -> None:
    handle = careful.enqueue()
    kit.drain(check=False)
    (child,) = kit.enqueued(leaf)
    app.jobs.discard(child.id, reason="test")
    kit.travel("1h")
    kit.drain()
    assert (handle.result(), done) == ("it failed", ["leaf -1", "job_failed"])


@app.job(retry=AGAIN, retry_as="new_job")
async def twice(ctx: Context) -> str:
    done.append("twice")
    if len(done) < 2:
        raise ConnectionError("again")
    return "at last"


@app.job()
async def patient(ctx: Context) -> str:
    return await ctx.result_of(await ctx.spawn(twice))


def test_retry_that_is_a_new_job_is_awaited(kit: Kit) -> None:
    handle = patient.enqueue()
    kit.drain(check=False)
    assert handle.result() == "at last"


@app.job()
async def keeps(ctx: Context, number: int) -> None:
    await ctx.spawn(keeps, number - 1, on_cancel="cancel") if number else None
    await ctx.spawn(leaf, 7, delay="1h")
    await ctx.sleep("1d")


@pytest.mark.every_case
def test_cancelling_a_job_cancels_or_leaves_its_children(kit: Kit) -> None:
    handle = keeps.enqueue(2)
    kit.drain()
    handle.cancel("not wanted")
    assert [job.state for job in kit.enqueued(keeps)] == [State.CANCELLED] * 3
    assert [job.state for job in kit.enqueued(leaf)] == [State.QUEUED] * 3
    reasons = [
        event.meta["reason"] for job in kit.enqueued(keeps) for event in kit.history(job.id) if event.type == "cancel"
    ]
    assert sorted(reasons) == ["its parent was cancelled", "its parent was cancelled", "not wanted"]


@app.job()
async def gives_up(ctx: Context) -> None:
    await ctx.spawn(keeps, 0, on_cancel="cancel")
    raise Cancel("enough")


def test_handler_that_cancels_its_job_cancels_its_children(kit: Kit) -> None:
    gives_up.enqueue()
    kit.drain()
    assert [job.state for job in kit.enqueued(keeps)] == [State.CANCELLED]


@app.job(retry=AGAIN)
async def waits_for(ctx: Context, job_id: str) -> Any:
    return await ctx.result_of(app.jobs.handle(job_id))


@app.job()
async def meets(ctx: Context) -> Any:
    target = await ctx.wait_for_event("target")
    return await ctx.result_of(app.jobs.handle(target.data["job"]))


@app.job()
async def waits_for_its_parent(ctx: Context) -> Any:
    assert ctx.parent_id is not None
    return await ctx.result_of(app.jobs.handle(ctx.parent_id))


@app.job()
async def awaited_by_its_child(ctx: Context) -> None:
    await ctx.result_of(await ctx.spawn(waits_for_its_parent))


@pytest.mark.every_case
def test_circle_is_refused(kit: Kit) -> None:
    awaited_by_its_child.enqueue()
    kit.drain(check=False)
    (child,) = kit.enqueued(waits_for_its_parent)
    assert child.error_code == "circular_wait"
    first = meets.enqueue()
    second = waits_for.enqueue(first.id)
    third = waits_for.enqueue(second.id)
    kit.drain(check=False)
    app.send_event("target", {"job": third.id})
    kit.drain(check=False)
    assert first.get().error_code == "circular_wait"
    # The others wait for it, and hear of its end.
    assert {job.get().error_code for job in (second, third)} == {"job_failed"}


def test_why_and_the_job_list_name_the_awaited_job(kit: Kit) -> None:
    late = leaf.using(delay="1h").enqueue(1)
    handle = waits_for.enqueue(late.id)
    kit.drain()
    reason = handle.why().reasons[0]
    assert (reason.code, reason.facts) == ("waiting_for_job", {"job": late.id})
    assert f"job {late.id}" in reason.says
    kit.travel("1h")
    kit.drain()
    assert handle.result() == 2


# --- the first of several ---


@app.job()
async def invoice(ctx: Context, number: int) -> list[Any]:
    child = await ctx.spawn(leaf, number, delay="3h")
    which, value = await ctx.first(
        paid=ctx.wait_for_event("paid", match={"number": number}),
        late=ctx.sleep("2h"),
        done=ctx.result_of(child),
    )
    await ctx.step("tell", note, which)
    return [which, value.data["by"] if which == "paid" else value]


@app.job()
def sync_invoice(ctx: SyncContext, number: int) -> list[Any]:
    child = ctx.spawn(leaf, number, delay="3h")
    which, value = ctx.first(
        paid=ctx.later.wait_for_event("paid", match={"number": number}),
        late=ctx.later.sleep("2h"),
        done=ctx.later.result_of(child),
    )
    ctx.step("tell", note, which)
    return [which, value.data["by"] if which == "paid" else value]


INVOICES = pytest.mark.parametrize("kind", [invoice, sync_invoice], ids=["async", "thread"])


@pytest.mark.every_case
@INVOICES
@pytest.mark.parametrize("comes", ["paid", "late", "done"])
def test_first_of_several_waits(kit: Kit, kind: Any, comes: str) -> None:
    handle = kind.enqueue(7)
    kit.drain()
    assert handle.state() is State.RETRY_WAITING
    if comes == "paid":
        app.send_event("paid", {"number": 7, "by": "card"})
    elif comes == "late":
        kit.travel("2h")
    else:
        (child,) = kit.enqueued(leaf)
        app.jobs.reschedule(child.id)
    kit.drain()
    assert handle.result() == [comes, {"paid": "card", "late": None, "done": 14}[comes]]
    steps = {step.name.partition(" ")[0]: step for step in handle.steps() if step.name != "spawn leaf"}
    errors = {"paid": steps["paid"].error, "late": steps["sleep"].error, "done": steps["result"].error}
    assert {name: (error or {}).get("type") for name, error in errors.items()} == {
        name: None if name == comes else "withdrawn" for name in errors
    }
    # An event that comes later belongs to nobody.
    assert app.send_event("paid", {"number": 7, "by": "cash"}).woke == 0
    assert kit.replay(handle).counts == {"compatible": 1}


@pytest.mark.slow
@INVOICES
@pytest.mark.parametrize("when", ["before", "after", "saved"])
@pytest.mark.parametrize("step", ["first", "paid", "tell"])
def test_race_is_decided_once_although_the_worker_is_lost(kit: Kit, kind: Any, step: str, when: Any) -> None:
    if (step, when) in (("paid", "after"), ("paid", "saved")):
        pytest.skip("a wait is not saved by the handler")
    kit.crash_at(step, when)
    handle = kind.enqueue(7)
    app.send_event("paid", {"number": 7, "by": "card"})
    kit.drain()
    kit.travel("2h")
    kit.drain()
    assert (handle.result(), handle.get().crashes) == (["paid", "card"], 1)


def test_first_raises_what_the_first_wait_raises(kit: Kit) -> None:
    @app.job(f"timeout_{uuid.uuid4().hex}")
    async def gives_up(ctx: Context) -> str:
        try:
            await ctx.first(ctx.wait_for_event("never", timeout="1h"), ctx.sleep("2h"))
        except EventTimeout:
            return "timeout"
        return "no"

    handle = gives_up.enqueue()
    kit.drain()
    kit.travel("1h")
    kit.drain()
    assert handle.result() == "timeout"


def test_first_takes_waits_only(kit: Kit) -> None:
    @app.job(f"wrong_{uuid.uuid4().hex}")
    async def wrong(ctx: Context) -> None:
        await ctx.first(ctx.sleep("1h"), ctx.step("no", note, 1))  # type: ignore[arg-type]

    with pytest.raises(HoldfastError) as caught:
        kit.run(wrong)
    assert caught.value.code == "not_a_wait"


# --- side by side ---


@app.job()
async def side_by_side(ctx: Context) -> list[Any]:
    first, _, second = await ctx.gather(
        ctx.wait_for_event("a", timeout="3h"), ctx.sleep("1h"), ctx.wait_for_event("b", timeout="3h")
    )
    await ctx.gather(ctx.sleep("1h"), ctx.sleep("1h"))
    assert first
    assert second
    return [first.data, second.data]


@pytest.mark.every_case
def test_waits_in_gather_run_side_by_side(kit: Kit) -> None:
    handle = side_by_side.enqueue()
    kit.drain()
    assert [step.name for step in handle.steps()] == ["a", "sleep", "b"]
    assert app.send_event("b", {"n": 2}).woke == 0
    assert app.send_event("a", {"n": 1}).woke == 1
    kit.travel("1h")
    kit.drain()
    before = handle.get()
    assert (before.state, before.due_at) == (State.RETRY_WAITING, handle.steps()[-1].wake_at)
    kit.travel("1h")
    kit.drain()
    assert handle.result() == [{"n": 1}, {"n": 2}]


# --- branches ---


@app.job(retry=AGAIN)
async def trip(ctx: Context) -> list[Any]:
    async def visit(place: str) -> Any:
        async with ctx.branch(place):
            offer = await ctx.step("ask", note, f"ask {place}")
            agreed = await ctx.wait_for_event("agreed", match={"place": place})
            await ctx.sleep("1h")
            return [offer, await ctx.step("book", note, f"book {place} {agreed.data['price']}")]

    result = await ctx.gather(visit("north"), visit("south"))
    return [result, await ctx.step("end", note, "end")]


@app.job(retry=AGAIN)
def sync_trip(ctx: SyncContext) -> list[Any]:
    def visit(place: str) -> Any:
        with ctx.branch(place):
            offer = ctx.step("ask", note, f"ask {place}")
            agreed = ctx.wait_for_event("agreed", match={"place": place})
            ctx.sleep("1h")
            return [offer, ctx.step("book", note, f"book {place} {agreed.data['price']}")]

    result = ctx.gather(partial(visit, "north"), partial(visit, "south"))
    return [result, ctx.step("end", note, "end")]


TRIPS = pytest.mark.parametrize("kind", [trip, sync_trip], ids=["async", "thread"])


@pytest.mark.every_case
@TRIPS
def test_branches_go_on_by_themselves(kit: Kit, kind: Any) -> None:
    handle = kind.enqueue()
    kit.drain()
    assert sorted(done) == ["ask north", "ask south"]
    app.send_event("agreed", {"place": "south", "price": 7})
    kit.drain()
    kit.travel("1h")
    kit.drain()
    assert done[2:] == ["book south 7"]
    app.send_event("agreed", {"place": "north", "price": 9})
    kit.drain()
    assert done[3:] == []
    assert kit.replay(handle).counts == {"compatible": 1}
    kit.travel("1h")
    kit.drain()
    assert handle.result() == [[["ask north", "book north 9"], ["ask south", "book south 7"]], "end"]
    assert done[3:] == ["book north 9", "end"]
    calls = {step.branch: step.name for step in handle.steps() if step.branch}
    expected = {1: "ask", 2: "agreed", 3: "sleep", 4: "book"}
    assert calls == {f"{place}/{n}": name for place in ("north", "south") for n, name in expected.items()}


@pytest.mark.slow
@TRIPS
@pytest.mark.parametrize("when", ["before", "after", "saved"])
@pytest.mark.parametrize("step", ["ask", "agreed", "sleep", "book", "end"])
def test_branches_continue_although_the_worker_is_lost(kit: Kit, kind: Any, step: str, when: Any) -> None:
    if step in ("agreed", "sleep") and when != "before":
        pytest.skip("a wait is not saved by the handler")
    kit.crash_at(step, when)
    handle = kind.enqueue()
    for _ in range(3):
        kit.drain()
        kit.travel("2h")
        for place in ("north", "south"):
            app.send_event("agreed", {"place": place, "price": 1}, key=place)
    kit.drain()
    assert handle.result() == [[["ask north", "book north 1"], ["ask south", "book south 1"]], "end"]
    assert handle.get().crashes == 1


def test_failure_that_a_branch_catches_is_recorded(kit: Kit) -> None:
    def fails(place: str) -> None:
        done.append(place)
        raise ConnectionError(place)

    @app.job(f"catches_{uuid.uuid4().hex}", retry=AGAIN)
    async def catches(ctx: Context) -> list[str]:
        async def visit(place: str) -> str:
            async with ctx.branch(place):
                try:
                    await ctx.step("ask", fails, place)
                except ConnectionError:
                    return await ctx.step("other", str, f"no {place}")
            return "yes"

        answers = await ctx.gather(visit("north"), visit("south"))
        await ctx.sleep("1h")
        return answers

    handle = catches.enqueue()
    kit.drain()
    kit.travel("1h")
    kit.drain()
    assert (handle.result(), sorted(done)) == (["no north", "no south"], ["north", "south"])


def test_branch_that_is_open_already_is_refused(kit: Kit) -> None:
    @app.job(f"same_{uuid.uuid4().hex}")
    async def same(ctx: Context) -> None:
        async def visit() -> None:
            async with ctx.branch("north"):
                await ctx.step("ask", note, 1)

        await ctx.gather(visit(), visit())

    with pytest.raises(HoldfastError) as caught:
        kit.run(same)
    assert caught.value.code == "branch_open"


def test_changed_calls_in_a_branch_are_found(kit: Kit) -> None:
    names = ["ask", "book"]

    @app.job(f"changed_{uuid.uuid4().hex}", hold_for=0)
    async def changed(ctx: Context) -> None:
        async with ctx.branch("north"):
            for name in names:
                await ctx.step(name, note, name)
        await ctx.sleep("1h")

    handle = changed.enqueue()
    kit.drain()
    names.reverse()
    with pytest.raises(JobFailed, match="durable call 1 was step 'ask' and is now step 'book'"):
        kit.replay(handle)


# --- recorded values ---


@app.job()
async def values(ctx: Context) -> list[Any]:
    found = [(await ctx.now()).isoformat(), await ctx.random(), str(await ctx.uuid())]
    done.append(found)
    await ctx.sleep("1h")
    return found


@app.job()
def sync_values(ctx: SyncContext) -> list[Any]:
    found = [ctx.now().isoformat(), ctx.random(), str(ctx.uuid())]
    done.append(found)
    ctx.sleep("1h")
    return found


@pytest.mark.every_case
@pytest.mark.parametrize("kind", [values, sync_values], ids=["async", "thread"])
def test_clock_and_random_values_are_recorded(kit: Kit, kind: Any) -> None:
    kit.travel("10d")
    handle = kind.enqueue()
    kit.drain()
    kit.travel("1h")
    kit.drain()
    first, second = done
    assert handle.result() == first == second
    at, number, made = first
    moment = datetime.fromisoformat(at)
    # The clock of the database, which the kit has moved.
    assert timedelta(days=9) < moment - datetime.now(UTC) < timedelta(days=11)
    assert 0 <= number < 1
    assert uuid.UUID(made).version == 4


# --- checks ---


def test_handler_that_takes_another_path_fails_the_test(kit_url: str | None) -> None:
    paths = ["left", "right"]

    @app.job(f"random_{uuid.uuid4().hex}")
    async def wanders(ctx: Context) -> str:
        return await ctx.step(paths.pop(), str, "there")

    @app.job(f"fixed_{uuid.uuid4().hex}")
    async def walks(ctx: Context) -> str:
        return await ctx.step("left" if await ctx.random() < 0.5 else "right", str, "there")

    with Kit(app, kit_url, check_determinism=True) as kit:
        assert kit.run(walks) == "there"
        handle = wanders.enqueue()
        with pytest.raises(JobFailed, match="durable call 1 was step 'right' and is now step 'left'"):
            kit.drain()
        assert handle.result() == "there"


def test_job_that_began_before_children_were_recorded_continues(kit: Kit) -> None:
    recorded = [False]

    @app.job(f"older_{uuid.uuid4().hex}")
    async def older(ctx: Context) -> str:
        await ctx.step("a", note, "a")
        if recorded[0]:
            await ctx.spawn(leaf, 1, key="one")
        else:
            await leaf.using(key=f"{ctx.job_id}:one").aenqueue(1)  # as release 0.1.0 did
        await ctx.step("b", note, "b")
        await ctx.sleep("1h")
        return str(await ctx.result_of(await ctx.spawn(leaf, 2)))

    handle = older.enqueue()
    kit.drain()
    recorded[0] = True
    for _ in range(2):
        kit.travel("1h")
        kit.drain()
    assert handle.result() == "4"
    assert len(kit.enqueued(leaf)) == 2


def test_redacted_history_of_a_parent_can_be_replayed(kit: Kit) -> None:
    handle = tree.enqueue([1, 2])
    kit.drain()
    (history,) = app.jobs.export_history(handle.id)
    assert kit.replay(history.redact()).counts == {"compatible": 1}
    fork = app.jobs.fork(handle.id, f"result of {kit.enqueued(leaf)[1].id}", reason="test")
    kit.drain()
    assert app.jobs.handle(fork.id).result() == [2, 4]
    assert len(kit.enqueued(leaf)) == 2
