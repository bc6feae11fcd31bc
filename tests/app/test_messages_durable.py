"""Messages, values and streams when workers are killed, in transactions, in processes, replayed and forked."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App, Context, PayloadPolicy, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.app.replayer import Replayer
from holdfast.errors import HoldfastError
from holdfast.features.payloads.operations import rotate
from holdfast.stores.vault import new_key
from tests.app.conftest import NewApp
from tests.app.processes import imported
from tests.app.worker_process import worker_process
from tests.support.direct_sql import open_by_hand
from tests.support.stores import forward
from tests.support.waiting import until
from tests.support.workers import work_off, working

worker = partial(worker_process, "tests.app.killable_jobs", lease=1.0)
CANARY = "canary-4711"


@pytest.mark.slow
@pytest.mark.req("HF-17", "HF-11")
def test_killed_workers_lose_no_message_and_repeat_no_chunk(
    app: App, url: str, tmp_path: Path, choice: random.Random
) -> None:
    session_of(app).make_ready()
    handle, count = app.enqueue("mailroom", {"count": 12}), 12
    marks = tmp_path / "begun"

    def begun() -> int:
        return len(marks.read_text().splitlines()) if marks.exists() else 0

    sending = threading.Thread(target=lambda: [handle.send("letter", n) for n in range(count - 1)])
    sending.start()
    for _ in range(3):
        wanted = min(count - 2, begun() + choice.randint(1, 3))
        with worker(url, tmp_path) as victim:
            until(lambda: begun() >= wanted, "it works", limit=30.0)  # noqa: B023
            victim.kill()
            victim.wait(timeout=10)
    sending.join()
    with worker(url, tmp_path, lease=30.0):
        assert handle.ask("letter", count - 1, timeout=60) == count
        assert handle.result(timeout=60) == list(range(count))
    assert handle.value("sorted") == list(range(count))
    # Each section is in the stream once, as its last run wrote it.
    texts = [chunk.data for chunk in handle.stream("log")]
    assert texts == [text for n in range(count) for text in (f"after {n}", f"in {n}")]


@pytest.mark.req("HF-17")
def test_messages_and_events_in_the_transaction_of_the_caller(app: App, url: str) -> None:
    @app.job
    async def wait(ctx: Context) -> list[Any]:
        return [(await ctx.receive("go")).data, (await ctx.wait_for_event("news")).data]

    handle = wait.enqueue()
    work_off(app)
    connect = psycopg.connect if url.startswith("postgres") else sqlite3.connect
    with closing(connect(url.removeprefix("sqlite:///"))) as connection:
        assert handle.send("go", 1, connection=connection).created
        app.send_event("news", {"n": 1}, connection=connection)
        connection.rollback()
        work_off(app)
        assert handle.state() is State.RETRY_WAITING
        handle.send("go", 2, connection=connection)
        app.send_event("news", {"n": 2}, connection=connection)
        connection.commit()
    for _ in range(3):
        work_off(app)
    forward(session_of(app).store, seconds=10)
    work_off(app)
    assert handle.result(timeout=5) == [2, {"n": 2}]


@pytest.mark.req("HF-17")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_message_that_is_committed_late_is_received_late(app: App, url: str) -> None:
    @app.job
    async def wait(ctx: Context) -> list[Any]:
        return [(await ctx.receive("go")).data for _ in range(3)]

    handle = wait.enqueue()
    with closing(psycopg.connect(url)) as connection:
        handle.send("go", "first", connection=connection)
        work_off(app)  # it waits, and cannot see the message
        handle.send("go", "second")
        work_off(app)
        connection.commit()
    with working(app):
        handle.send("go", "third")
        assert sorted(handle.result(timeout=30)[1:]) == ["first", "third"]
        assert handle.result(timeout=1)[0] == "second"


@pytest.mark.slow
@pytest.mark.req("HF-17")
def test_messages_keep_their_order_while_the_job_begins_to_wait(app: App) -> None:
    @app.job
    async def collect(ctx: Context) -> list[int]:
        return [(await ctx.receive("n")).data for _ in range(40)]

    handles = [collect.enqueue() for _ in range(3)]
    with working(app, concurrency=3):
        senders = [threading.Thread(target=lambda h=h: [h.send("n", n) for n in range(40)]) for h in handles]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        for handle in handles:
            assert handle.result(timeout=60) == list(range(40))


@pytest.mark.req("HF-17", "HF-11")
@pytest.mark.parametrize("name", ["talks", "talks_blocking"])
def test_handlers_in_processes(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported("tests.app.process_jobs", url, monkeypatch)
    with closing(module.app) as app:
        handle = app.enqueue(name)
        with working(app):
            assert handle.wait_for_value("ready", timeout=60) is True
            assert handle.ask("double", 21, timeout=30) == 42
            assert [chunk.data for chunk in handle.stream("out")] == ["before", "in a step", "after"]
            assert handle.result(timeout=30) == "done"


@pytest.mark.req("HF-17", "HF-11", "HF-10")
def test_replay_and_fork_know_the_calls(app: App) -> None:
    @app.job
    async def talk(ctx: Context) -> str:
        await ctx.stream("out").write("hello")
        question = await ctx.receive("ask", type=int)
        await ctx.publish("state", "asked")
        await ctx.answer(question, question.data + 1)
        await ctx.step("work", lambda: 7)
        return "done"

    handle = talk.enqueue()
    with working(app):
        assert handle.ask("ask", 1, timeout=20) == 2
        handle.result(timeout=20)
    written = len(app.jobs.stream(handle.id, "out").chunks)
    (history,) = app.jobs.export_history(handle.id)
    replayed = asyncio.run(Replayer(app).replay(history))
    assert (replayed.verdict, replayed.matched) == ("compatible", 4), replayed
    assert len(app.jobs.stream(handle.id, "out").chunks) == written == 1
    fork = app.jobs.fork(handle.id, "work")
    work_off(app)
    again = app.jobs.handle(fork.id)
    assert again.result(timeout=5) == "done"
    assert again.value("state") == "asked", "the fork took the call over"
    assert [chunk.data for chunk in again.stream("out")] == [], "and does not write what came before it again"


@pytest.mark.req("HF-11", "HF-17", "DP-4")
def test_sealed_streams_and_values(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = f"old:{new_key()}", f"new:{new_key()}"
    monkeypatch.setenv("HOLDFAST_KEYS", old)
    app = new_app()

    @app.job
    async def talk(ctx: Context) -> None:
        await ctx.stream("out").write(CANARY)
        await ctx.publish("state", CANARY)

    handle = talk.enqueue()
    work_off(app)
    assert [chunk.data for chunk in handle.stream("out")] == [CANARY]
    assert handle.value("state") == CANARY
    assert CANARY not in str(app.jobs.values(handle.id))
    with pytest.raises(HoldfastError, match="sealed"):
        app.jobs.stream(handle.id, "out")
    monkeypatch.setenv("HOLDFAST_KEYS", f"{new},{old}")
    rotating = session_of(new_app())
    assert rotate(rotating, rotating.vault).resealed >= 3
    monkeypatch.setenv("HOLDFAST_KEYS", new)
    late = new_app().jobs.handle(handle.id)
    assert [chunk.data for chunk in late.stream("out")] == [CANARY]
    assert late.value("state") == CANARY


@pytest.mark.req("HF-11", "HF-17", "DP-4")
def test_restricted_kinds_hide_streams_values_and_answers(app: App) -> None:
    @app.job(payload_rules=PayloadPolicy(restricted=True))
    def talk(ctx: SyncContext) -> None:
        ctx.stream("out").write(CANARY)
        ctx.publish("state", CANARY)
        ctx.answer(ctx.receive("ask"), CANARY)

    handle = talk.enqueue()
    with working(app):
        assert handle.ask("ask", CANARY, timeout=20) == CANARY, "the program that asked gets its answer"
    assert handle.value("state") == CANARY
    for read in (
        app.jobs.steps(handle.id),
        app.jobs.values(handle.id),
        app.jobs.value(handle.id, "state"),
        app.jobs.stream(handle.id, "out"),
    ):
        assert "[restricted]" in str(read)
        assert CANARY not in str(read)


@pytest.mark.req("HF-11", "HF-17")
def test_messages_and_streams_are_cleaned_with_their_job(app: App) -> None:
    @app.job
    async def talk(ctx: Context) -> None:
        await ctx.stream("out").write("hello")
        await ctx.receive("go")

    handle, store = talk.enqueue(), session_of(app).store
    handle.send("go")
    handle.send("more")
    work_off(app)
    kept = talk.enqueue()
    kept.send("go")
    work_off(app)

    def rows() -> tuple[int, int]:
        with closing(open_by_hand(store.url)) as by_hand:
            read = by_hand.execute
            return read("select count(*) from message")[0][0], read("select count(*) from stream_part")[0][0]

    assert rows() == (3, 2)
    # Streams are kept for a month, also if jobs are kept for ever.
    forward(store, seconds=31 * 86_400)
    assert app.retention.sweep(tenant="*")["prune"] >= 2
    assert rows() == (3, 0)
    app.retention.set(clean_after="1h", state="succeeded")
    assert app.retention.sweep()["clean"] == 2
    assert rows() == (0, 0)
