"""``kit.replay``: recorded histories against changed handlers. Ten changes that differ, ten that do not."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, EventTimeout, SyncContext
from holdfast.app.internals import session_of
from holdfast.app.replayer import Replayer
from holdfast.errors import InvalidInput, NotFound
from holdfast.steps.history import History, read_histories
from holdfast.testing import Kit, Replayed, ReplayFailed

pytestmark = [pytest.mark.req("HF-10"), pytest.mark.every_case]

NOWHERE = "postgresql://user@127.0.0.1:1/none"
Handler = Callable[..., Any]


@dataclasses.dataclass
class Quote:
    id: str
    cents: int


@dataclasses.dataclass
class OtherQuote:
    id: str
    currency: str


def offer(order: int) -> Quote:
    return Quote(f"q-{order}", 100)


def charge(cents: int) -> str:
    return f"ref-{cents}"


def other() -> int:
    return 1


def fails() -> None:
    raise ValueError("no address")


async def order_flow(ctx: Context, order: int) -> str:
    quote = await ctx.step("quote", offer, order)
    ref = ""
    if (await ctx.approval("ok", summary=f"Pay {quote.cents}?")).approved:
        ref = await ctx.step("charge", charge, quote.cents)
    await ctx.sleep("1h", name="settle")
    event = await ctx.wait_for_event("paid", match={"ref": ref}, timeout="2d")
    try:
        await ctx.step("mail", fails)
    except ValueError:
        await ctx.step("letter", other)
    await ctx.step("report", other)
    return event.name


def declare(handler: Handler) -> App:
    app = App(NOWHERE)
    app.job(name="order_flow")(handler)
    return app


def drained(app: App, until: int = 6) -> History:
    """The history of a job that has made this many of its calls, in a private database."""
    with Kit(app) as kit:
        handle = app.enqueue("order_flow", {"order": 7})
        for act in (
            lambda: None,
            lambda: [kit.approve(each.name) for each in kit.approvals()],
            lambda: kit.travel("1h"),
            lambda: app.send_event("paid", {"ref": "ref-100"}),
        )[:until]:
            act()
            kit.drain()
        history: History = next(app.jobs.export_history(handle.id))
        return history


@pytest.fixture(scope="module")
def recorded() -> History:
    history = drained(declare(order_flow))
    assert [step.name for step in history.steps] == [
        *("quote", "ok", "charge", "settle", "paid", "mail", "letter", "report")
    ]
    assert history.job.state == "succeeded"
    return history


def replayed(handler: Handler, history: History) -> Replayed:
    app = declare(handler)
    with Kit(app) as kit:
        (result,) = kit.replay(history, check=False).results
        return result


def changed(*edits: tuple[str, str]) -> Handler:
    """``order_flow`` with parts of its source replaced."""
    source = inspect.getsource(order_flow)
    for before, after in edits:
        assert before in source, before
        source = source.replace(before, after)
    space: dict[str, Any] = dict(globals())
    exec(compile(source, "changed.py", "exec", dont_inherit=True), space)
    handler: Handler = space["order_flow"]
    return handler


CHARGE = '        ref = await ctx.step("charge", charge, quote.cents)\n'
SLEEP = '    await ctx.sleep("1h", name="settle")\n'
ASK = '(await ctx.approval("ok", summary=f"Pay {quote.cents}?")).approved'
REPORT = '    await ctx.step("report", other)\n'
LATER = "    ref = await ctx.step('charge', charge, 1)\n"
END = "    return event.name"
Edits = list[tuple[str, str]]

DIFFERENT: dict[str, tuple[Edits, str, int | None]] = {
    "a step is moved": ([(SLEEP, ""), (CHARGE, f"        pass\n{SLEEP}{LATER}")], "steps_changed", 3),
    "a step is renamed": ([('"charge", charge', '"pay", charge')], "steps_changed", 3),
    "a step is inserted": ([(CHARGE, f'        await ctx.step("check", other)\n{CHARGE}')], "steps_changed", 3),
    "a step is removed": ([(CHARGE, '        ref = "ref-100"\n')], "steps_changed", 3),
    "the last step is removed": ([(REPORT, "")], "not_called", 8),
    "a step becomes a sleep": ([(REPORT, '    await ctx.sleep(60, name="report")\n')], "steps_changed", 8),
    "another event is awaited": ([('"paid", match', '"settled", match')], "steps_changed", 5),
    "the match changes": ([('match={"ref": ref}', 'match={"order": order}')], "wait_changed", 5),
    "the timeout changes": ([('timeout="2d"', 'timeout="3d"')], "wait_changed", 5),
    "a recorded value has another type": ([("offer, order", "offer_other, order")], "value_changed", 1),
    "the approval asks something else": ([("{quote.cents}?", "{quote.cents} now?")], "question_changed", 2),
    "the approval is no longer asked": ([(ASK, "quote")], "steps_changed", 2),
    "an argument is renamed": (
        [("order: int", "number: int"), ("offer, order", "offer, number")],
        "arguments_changed",
        None,
    ),
    "it raises before the end": ([(SLEEP, f'{SLEEP}    raise LookupError("no rate")\n')], "handler_failed", 5),
    "an error is no longer caught": ([("except ValueError", "except KeyError")], "handler_failed", 7),
    "it returns early": ([(SLEEP, f'{SLEEP}    return "done"\n')], "not_called", 5),
    "it snoozes before the end": ([(SLEEP, f'{SLEEP}    ctx.snooze("1h")\n')], "handler_failed", 5),
    "it is not deterministic": (
        [(SLEEP, f'{SLEEP}    await ctx.step(f"n{{next(numbers)}}", other)\n')],
        "not_deterministic",
        5,
    ),
}
numbers = iter(range(10**9))


def offer_other(order: int) -> OtherQuote:
    return OtherQuote("q", "EUR")


@pytest.mark.parametrize("change", DIFFERENT)
def test_a_change_that_differs_is_found(recorded: History, change: str) -> None:
    edits, code, n = DIFFERENT[change]
    result = replayed(changed(*edits), recorded)
    assert result.difference is not None, result
    assert (result.verdict, result.difference.code, result.difference.n) == ("different", code, n), result
    if code == "steps_changed":
        assert result.difference.recorded is not None
        assert result.difference.called is not None


PATCHED = '    if await ctx.patched("check"):\n        await ctx.step("check", other)\n'
SAVE = "    await ctx.checkpoint.save(1)\n    assert await ctx.checkpoint.load() == 1\n"
COMPATIBLE: dict[str, Edits] = {
    "nothing changes": [],
    "a step is added at the end": [(END, f'    await ctx.step("thanks", other)\n{END}')],
    "a step is guarded with patched": [(REPORT, PATCHED + REPORT)],
    "a step has a timeout": [('ctx.step("charge"', 'ctx.step_options(timeout=5).step("charge"')],
    "the function of a step is another": [('"report", other', '"report", lambda: 5')],
    "the duration of a sleep": [('ctx.sleep("1h"', 'ctx.sleep("2h"')],
    "it logs and reports progress": [(SLEEP, f'{SLEEP}    ctx.log.info("settled")\n    await ctx.progress(0.5)\n')],
    "it saves a checkpoint": [(SLEEP, SLEEP + SAVE)],
    "it keeps an artifact": [(SLEEP, f'{SLEEP}    await ctx.artifact("a", data=b"1")\n')],
    "it spawns a child": [(SLEEP, f'{SLEEP}    await ctx.spawn("child", {{}}, key="1")\n')],
    "an argument with a default is added": [("order: int)", "order: int, vip: bool = False)")],
    "code after the last call": [(END, "    raise LookupError")],
    "steps run at once": [(CHARGE, '        (ref,) = await ctx.gather(ctx.step("charge", charge, 1))\n')],
}


@pytest.mark.parametrize("change", COMPATIBLE)
def test_a_compatible_change_is_not_reported(recorded: History, change: str) -> None:
    result = replayed(changed(*COMPATIBLE[change]), recorded)
    assert (result.verdict, result.difference, result.matched) == ("compatible", None, 8), result


@pytest.mark.parametrize("calls", range(1, 5))
def test_an_unfinished_history_is_compatible_so_far(calls: int) -> None:
    history = drained(declare(order_flow), calls)
    assert replayed(order_flow, history).verdict == "compatible"
    reordered = changed(('"quote", offer', '"offer", offer'))
    assert replayed(reordered, history).stops


# --- sync handlers, branches, ends ---


def sync_flow(ctx: SyncContext, order: int) -> str:
    quote: Any
    quote, _ = ctx.gather(ctx.submit("quote", offer, order), ctx.submit("stock", other))
    ctx.sleep("1h")
    try:
        ctx.wait_for_event("paid", timeout="1d")
    except EventTimeout:
        return "never"
    return str(ctx.step("charge", charge, quote.cents))


def sync_changed(ctx: SyncContext, order: int) -> str:
    quote, _ = ctx.gather(ctx.submit("stock", other), ctx.submit("quote", offer, order))
    return str(quote)


def sync_mistyped(ctx: SyncContext, order: int) -> str:
    quote, _ = ctx.gather(ctx.submit("quote", offer_other, order), ctx.submit("stock", other))
    ctx.sleep("1h")
    return str(quote)


def test_sync_handlers_are_replayed_in_a_thread() -> None:
    history = drained(declare(sync_flow), 3)
    assert [step.name for step in history.steps] == ["quote", "stock", "sleep", "paid"]
    assert replayed(sync_flow, history).verdict == "compatible"
    found = replayed(sync_changed, history).difference
    assert found is not None
    assert found.code == "steps_changed"
    found = replayed(sync_mistyped, history).difference
    assert found is not None
    assert (found.code, found.n) == ("value_changed", 1)


async def branches(ctx: Context, order: int) -> None:
    async def branch(name: str) -> None:
        await ctx.step_options(unordered=True).step(f"{name} a", other)
        await ctx.step_options(unordered=True).step(f"{name} b", other)

    async with asyncio.TaskGroup() as group:
        for name in ("x", "y"):
            group.create_task(branch(name))
    await ctx.wait_for_event("paid")


async def branches_without_one(ctx: Context, order: int) -> None:
    for name in ("x a", "x b", "y a"):
        await ctx.step_options(unordered=True).step(name, other)
    await ctx.wait_for_event("paid")


async def branches_that_wait(ctx: Context, order: int) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(branches(ctx, order))


def test_branches_by_name() -> None:
    history = drained(declare(branches), 1)
    assert len(history.steps) == 5
    assert replayed(branches, history).verdict == "compatible"
    assert replayed(branches_that_wait, history).verdict == "compatible"
    result = replayed(branches_without_one, history)
    assert result.difference is not None
    assert result.difference.recorded is not None
    assert result.difference.recorded.name == "y b"


# --- nothing happens ---


def test_a_replay_writes_nothing_and_runs_no_step(kit_url: str | None, tmp_path: Path) -> None:
    ran: list[str] = []

    def record() -> None:
        ran.append("step")

    app = App(NOWHERE, artifacts=tmp_path)

    @app.job()
    async def child() -> None:
        ran.append("child")

    @app.job()
    async def busy(ctx: Context) -> None:
        await ctx.step("a", record)
        await ctx.spawn(child)
        await child.aenqueue()
        child.enqueue()
        await app.asend_event("paid", {"order": 1})
        await ctx.checkpoint.save({"row": 1})
        await ctx.artifact("report", data=b"content")
        await ctx.progress(0.5, "half")
        ctx.log.warning("a line for the log of the attempt")
        await ctx.step("b", record)
        await ctx.sleep("1h")

    with Kit(app, kit_url) as kit:
        store = session_of(app).store
        handle = busy.enqueue()
        kit.drain(check=False)
        app.jobs.cancel(*(job.id for job in kit.enqueued(child)))
        ran.clear()
        before, files = everything(app), sorted(tmp_path.rglob("*"))
        result = kit.replay(handle).results[0]
        assert (result.verdict, result.matched) == ("compatible", 3), result
        assert (everything(app), sorted(tmp_path.rglob("*"))) == (before, files)
        assert (ran, session_of(app).store) == ([], store)


def everything(app: App) -> list[Any]:
    store = session_of(app).store
    events = store.run(store.ledger.read(None, 1000, "*"))
    sent = store.run(store.ledger.read_sent(None, 1000, "*"))
    jobs = [app.jobs.details(job.id) for job in app.jobs.list()]
    return [events, sent, [dataclasses.replace(job, liveness=None) for job in jobs]]


own: list[App] = []
"""The app of a handler that enqueues without its context."""


def test_hooks_are_not_called(recorded: History) -> None:
    app = declare(changed((SLEEP, f'{SLEEP}    await own[0].aenqueue("child", {{}})\n')))
    own[:], called = [app], list[str]()

    @app.hooks.around_run
    def run(info: object) -> Any:
        called.append("run")
        yield

    @app.hooks.around_enqueue
    def enqueue(info: object) -> Any:
        called.append("enqueue")
        yield

    with Kit(app) as kit:
        assert kit.replay(recorded).counts == {"compatible": 1}
    assert called == []


async def reads_the_database(ctx: Context, order: int) -> None:
    await ctx.step("quote", offer, order)
    await declared.jobs.aget("01a1de74-eb8c-70f1-843b-cac5f6817387")
    await ctx.step("charge", charge, 1)


async def uses_a_transaction(ctx: Context, order: int) -> None:
    await ctx.step("quote", offer, order)
    async with ctx.transaction():
        raise AssertionError("no transaction begins")


declared = declare(reads_the_database)


@pytest.mark.parametrize("handler", [reads_the_database, uses_a_transaction])
def test_what_the_history_does_not_have_is_unchecked(recorded: History, handler: Handler) -> None:
    app = declared if handler is reads_the_database else declare(handler)
    history = dataclasses.replace(recorded, steps=(recorded.steps[0], dataclasses.replace(recorded.steps[2], n=2)))
    with Kit(app) as kit:
        (result,) = kit.replay(history).results
    assert (result.verdict, result.matched, result.recorded) == ("unchecked", 1, 2)
    assert result.note is not None
    assert "not checked: 1 call" in result.note


async def hangs(ctx: Context, order: int) -> None:
    await asyncio.Event().wait()


def hangs_in_a_thread(ctx: SyncContext, order: int) -> None:
    while not ctx.cancelled:
        release.wait(0.01)


release = threading.Event()


@pytest.mark.parametrize("handler", [hangs, hangs_in_a_thread])
def test_a_handler_that_does_not_end_is_reported(recorded: History, handler: Handler) -> None:
    result = asyncio.run(Replayer(declare(handler), timeout=0.2).replay(recorded))
    assert result.difference is not None
    assert (result.difference.code, result.difference.n) == ("handler_failed", 1)
    assert "0.2 s" in result.difference.message


async def leaves(ctx: Context, order: int) -> None:
    raise SystemExit(3)


async def swallows(ctx: Context, order: int) -> None:
    for _ in range(3):
        with contextlib.suppress(BaseException):
            await ctx.step("other", other)


def test_hostile_handlers_are_reported(recorded: History) -> None:
    found = replayed(leaves, recorded).difference
    assert found is not None
    assert "SystemExit" in found.message
    found = replayed(swallows, recorded).difference
    assert found is not None
    assert (found.code, found.n) == ("steps_changed", 1)


def test_histories_that_cannot_be_replayed_are_skipped(recorded: History) -> None:
    app = declare(order_flow)
    app.command("unload", ["true"])
    hidden = dataclasses.replace(recorded, hidden="its kind is restricted")
    others = [
        dataclasses.replace(recorded, job=dataclasses.replace(recorded.job, kind=kind)) for kind in ("unload", "x")
    ]
    with Kit(app) as kit:
        results = kit.replay(hidden, *others).results
    assert [result.verdict for result in results] == ["skipped"] * 3
    assert [result.note for result in results] == [
        "its kind is restricted",
        "it is a command: its code is another program",
        "this app declares no job 'x'",
    ]


def test_a_handler_without_recorded_calls_does_not_run(recorded: History) -> None:
    async def sends_mail(order: int) -> None:
        raise AssertionError("it runs")

    history = dataclasses.replace(recorded, steps=())
    assert replayed(sends_mail, history).verdict == "compatible"
    found = replayed(lambda: None, history).difference
    assert found is not None
    assert found.code == "arguments_changed"


def test_a_test_fails_with_the_differences(recorded: History) -> None:
    with Kit(declare(changed(('"charge", charge', '"pay", charge')))) as kit, pytest.raises(ReplayFailed) as raised:
        kit.replay(recorded, recorded)
    assert raised.value.code == "replay_differs"
    assert "durable call 3 was step 'charge' and is now step 'pay'" in str(raised.value)
    assert len(raised.value.report.different) == 2


# --- files ---


def test_a_history_survives_a_file(recorded: History, tmp_path: Path) -> None:
    file = tmp_path / "histories.jsonl"
    file.write_text(f"{recorded.to_json()}\n\n{recorded.to_json()}\n")
    assert [*read_histories(file)] == [recorded, recorded]
    with Kit(declare(order_flow)) as kit:
        assert kit.replay(file).counts == {"compatible": 2}


def test_a_redacted_history_has_no_values_and_is_replayed(recorded: History) -> None:
    redacted = recorded.redact()
    text = redacted.to_json()
    assert not [secret for secret in ("ref-100", "q-7", "no address") if secret in text]
    assert redacted.payload == {"order": 0}
    assert replayed(order_flow, History.from_json(redacted.to_json())).verdict == "compatible"
    found = replayed(changed(('"charge", charge', '"pay", charge')), redacted)
    assert found.stops
    assert "redacted" in str(found)


def line(recorded: History, **changes: Any) -> str:
    values = json.loads(recorded.to_json())
    for path, value in changes.items():
        *way, name = path.split("__")
        inside = values
        for part in way:
            inside = inside[int(part) if part.isdecimal() else part]
        inside[name] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "its format is 2"),
        ({"format": None}, "its format is None"),
        ({"job": 7}, "job of the history is not an object"),
        ({"job__state": "sleeping"}, "state of job of the history"),
        ({"job__attempt": "1"}, "attempt of job"),
        ({"job__attempt": True}, "attempt of job"),
        ({"job__created_at": "yesterday"}, "created_at of job"),
        ({"job__created_at": "2027-01-01T00:00:00"}, "created_at of job"),
        ({"steps": {}}, "steps of the history"),
        ({"steps__0__kind": "dance"}, "kind of steps of the history 1"),
        ({"steps__0__n": None}, "n of steps of the history 1"),
        ({"steps__0__error": "no"}, "error of steps of the history 1"),
        ({"questions": [[1]]}, "questions of the history"),
        ({"checkpoints": []}, "checkpoints of the history"),
    ],
    ids=str,
)
def test_a_line_that_is_no_history_is_refused(
    recorded: History, change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "histories.jsonl"
    file.write_text(f"{recorded.to_json()}\n{line(recorded, **change)}\n")
    with pytest.raises(InvalidInput) as raised:
        [*read_histories(file)]
    assert raised.value.code == "invalid_history"
    assert says in raised.value.message
    assert f"{file}, line 2" in raised.value.message


@pytest.mark.parametrize(
    "text", ["x", "[]", "{}", "null", '{"job":', "\x00", '{"job": 1e999}', "[" * 100_000, "\ufeff{}"]
)
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "histories.jsonl"
    file.write_text(text)
    with pytest.raises(InvalidInput) as raised:
        [*read_histories(file)]
    assert raised.value.code == "invalid_history"


def test_a_truncated_or_huge_line_is_refused(
    recorded: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "histories.jsonl"
    file.write_text(recorded.to_json()[:-20])
    with pytest.raises(InvalidInput) as raised:
        [*read_histories(file)]
    assert raised.value.code == "invalid_history"
    monkeypatch.setattr("holdfast.steps.history.LINE_LIMIT", 1000)
    with pytest.raises(InvalidInput) as raised:
        [*read_histories(file)]
    assert raised.value.code == "history_too_large"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput):
        [*read_histories(file)]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as raised:
        [*read_histories(tmp_path / "none.jsonl")]
    assert raised.value.code == "file_not_found"


def test_steps_without_order_or_twice_are_still_matched(recorded: History) -> None:
    shuffled = dataclasses.replace(recorded, steps=recorded.steps[::-1])
    assert replayed(order_flow, shuffled).verdict == "compatible"
    late = dataclasses.replace(recorded.steps[0], n=99, started_at=recorded.steps[0].started_at + timedelta(days=1))
    result = replayed(order_flow, dataclasses.replace(recorded, steps=(*recorded.steps, late)))
    assert result.difference is not None
    assert result.difference.code == "not_called"
