"""A message is accepted or refused once: a later attempt decides by what is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import App, Backoff, Context, Message, Retry, State, SyncContext
from holdfast.errors import JobFailed
from holdfast.features.jobs.handle import Handle
from holdfast.testing import Kit

pytestmark = [pytest.mark.req("HF-17"), pytest.mark.every_case]

app = App("sqlite:///:memory:", name="messages_kit")
limit = [100]
checked: list[int] = []


@pytest.fixture
def kit(kit_url: str | None) -> Iterator[Kit]:
    limit[:], checked[:] = [100], []
    with Kit(app, kit_url) as kit:
        yield kit


def check(amount: int) -> None:
    checked.append(amount)
    if amount > limit[0]:
        raise ValueError(f"at most {limit[0]}")


def double(amount: int) -> int:
    return 2 * amount


@app.job
async def account(ctx: Context) -> int:
    question = await ctx.receive("withdraw", type=int, check=check)
    await ctx.sleep("1h")
    return int(question.data)


@app.job
def sync_account(ctx: SyncContext) -> int:
    question = ctx.receive("withdraw", type=int, check=check)
    ctx.sleep("1h")
    return int(question.data)


@app.job
async def refusing(ctx: Context) -> int:
    """Accepts a message, and refuses it itself."""
    question = await ctx.receive("withdraw", type=int, check=check)
    await ctx.refuse(question, "not today")
    await ctx.sleep("1h")
    return int(question.data)


@app.job
async def in_branches(ctx: Context) -> list[int]:
    async def visit(name: str) -> int:
        async with ctx.branch(name):
            question = await ctx.receive(name, type=int, check=check)
            if name == "north":
                await ctx.step("double", double, question.data)
            return int(question.data)

    amounts = await ctx.gather(visit("north"), visit("south"))
    await ctx.sleep("1h")
    return amounts


@app.job
async def before_branch(ctx: Context) -> int:
    question = await ctx.receive("withdraw", type=int, check=check)
    async with ctx.branch("wait"):
        await ctx.sleep("1h")
    return int(question.data)


@app.job
async def gathered(ctx: Context) -> list[int]:
    received = await ctx.gather(
        ctx.receive("north", type=int, check=check),
        ctx.receive("south", type=int, check=check),
        ctx.step("double", double, 1),
    )
    await ctx.sleep("1h")
    return [int(each.data) for each in received[:2] if isinstance(each, Message)]


@app.job
async def parallel(ctx: Context) -> int:
    """The other branch goes on before the message comes: that decides nothing."""

    async def tour() -> None:
        for name in ("a", "b"):
            async with ctx.branch(name):
                await ctx.step("double", double, 1)

    question, _ = await ctx.gather(ctx.receive("withdraw", type=int, check=check), tour())
    assert question is not None
    return int(question.data)


@app.job
async def beside_steps(ctx: Context) -> int:
    async def steps() -> None:
        for n in range(3):
            await ctx.step(f"double {n}", double, n)

    question, _ = await ctx.gather(ctx.receive("withdraw", type=int, check=check), steps())
    assert question is not None
    return int(question.data)


def finish(kit: Kit, handle: Handle[Any]) -> Any:
    kit.travel("1h")
    kit.drain()
    return handle.result(timeout=5)


@pytest.mark.parametrize("kind", [account, sync_account, refusing, before_branch])
def test_an_accepted_message_stays_accepted(kit: Kit, kind: Any) -> None:
    handle = kind.enqueue()
    handle.send("withdraw", 70)
    kit.drain()
    limit[0] = 50
    assert (finish(kit, handle), checked) == (70, [70])


@pytest.mark.parametrize("kind", [account, sync_account])
def test_a_refused_message_stays_refused(kit: Kit, kind: Any) -> None:
    handle = kind.enqueue()
    handle.send("withdraw", 700)
    kit.drain()
    limit[0] = 1000
    handle.send("withdraw", 70)
    kit.drain()
    assert (finish(kit, handle), checked) == (70, [700, 70])


@pytest.mark.parametrize("kind", [in_branches, gathered])
def test_messages_of_calls_at_once(kit: Kit, kind: Any) -> None:
    handle = kind.enqueue()
    kit.drain()
    for name, amount in (("north", 70), ("south", 700), ("south", 80)):
        handle.send(name, amount)
        kit.drain()
    assert handle.state() is State.RETRY_WAITING
    limit[0], before = 50, len(checked)
    if kind is in_branches:
        assert (finish(kit, handle), checked[before:]) == ([70, 80], [])
    else:
        limit[0] = 100
        assert finish(kit, handle) == [70, 80]


def test_gathered_messages_stay_accepted(kit: Kit) -> None:
    handle = gathered.enqueue()
    handle.send("north", 70)
    handle.send("south", 80)
    kit.drain()
    limit[0] = 50
    assert (finish(kit, handle), checked) == ([70, 80], [70, 80])


@pytest.mark.parametrize("kind", [parallel, beside_steps])
def test_what_ran_before_the_message_accepts_nothing(kit: Kit, kind: Any) -> None:
    handle = kind.enqueue()
    kit.drain()
    handle.send("withdraw", 700)
    kit.drain(check=False)
    assert (handle.state() is State.SUCCEEDED, checked) == (False, [700])


def test_a_check_that_fails_is_called_again(kit: Kit) -> None:
    outages = [1]

    def balance(amount: int) -> None:
        checked.append(amount)
        if outages.pop() if outages else 0:
            raise ConnectionError("no database")

    @app.job(name="outage", retry=Retry(max_attempts=2, backoff=Backoff(base=0.0, cap=0.0, jitter=False)))
    async def outage(ctx: Context) -> Any:
        return (await ctx.receive("withdraw", type=int, check=balance)).data

    handle = outage.enqueue()
    handle.send("withdraw", 70)
    kit.drain()
    assert (finish(kit, handle), checked) == (70, [70, 70])


def test_a_type_that_has_changed_is_an_ordinary_error(kit: Kit) -> None:
    types: list[Any] = [int]

    @app.job(name="retyped", retry=Retry(max_attempts=1))
    async def retyped(ctx: Context) -> None:
        await ctx.receive("withdraw", type=types[0])
        await ctx.sleep("1h")

    handle = retyped.enqueue()
    handle.send("withdraw", 70)
    kit.drain()
    types[0] = str
    kit.travel("1h")
    kit.drain(check=False)
    with pytest.raises(JobFailed, match="message withdraw does not fit: Input should be a valid string"):
        handle.result(timeout=5)
