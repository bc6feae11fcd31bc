"""Output streams: chunks that clients read while the handler runs (HF-11)."""

from __future__ import annotations

import threading
from asyncio import gather
from typing import Any

import pytest

from holdfast import App, Backoff, Chunk, Context, Retry, SyncContext
from holdfast.errors import Conflict, InvalidInput, InvalidPayload, NotFound, Refused
from holdfast.features.streams import model
from holdfast.worker import stream_writer
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("HF-11")

AGAIN = Retry(max_attempts=5, backoff=Backoff(base=0.0, cap=0.0, jitter=False))


def shown(chunks: list[Chunk]) -> list[Any]:
    """What a reader shows who forgets the chunks that are replaced."""
    kept: list[Chunk] = []
    for chunk in chunks:
        if chunk.replaces:
            kept = [each for each in kept if each.section != chunk.section]
        kept.append(chunk)
    return [chunk.data for chunk in kept]


@pytest.mark.every_case
@pytest.mark.parametrize("form", ["sync", "async"])
def test_chunks_are_read_while_the_handler_runs(app: App, form: str) -> None:
    go_on = threading.Event()
    if form == "async":

        @app.job(name="talk")
        async def talk(ctx: Context) -> str:
            stream = ctx.stream("tokens")
            await stream.write("Hello")
            while not go_on.is_set():
                await ctx.progress(0.5)
                await _tick()
            for n in range(100):
                await stream.write({"n": n})
            return "said"
    else:

        @app.job(name="talk")
        def talk(ctx: SyncContext) -> str:
            stream = ctx.stream("tokens")
            stream.write("Hello")
            assert go_on.wait(20)
            for n in range(100):
                stream.write({"n": n})
            return "said"

    handle = talk.enqueue()
    with working(app):
        chunks = iter(handle.stream("tokens"))
        first = next(chunks)
        assert (first.data, first.step, first.attempt, first.replaces) == ("Hello", None, 1, False)
        go_on.set()
        assert [chunk.data for chunk in chunks] == [{"n": n} for n in range(100)]
        assert handle.result(timeout=20) == "said"
    assert [chunk.data for chunk in handle.stream("tokens", after=first.id)] == [{"n": n} for n in range(100)]
    assert app.jobs.streams(handle.id) == ["tokens"]


async def _tick() -> None:
    import asyncio

    await asyncio.sleep(0.01)


def test_steps_of_branches_write_to_a_stream(app: App) -> None:
    @app.job
    async def survey(ctx: Context) -> list[str]:
        async def ask(place: str) -> str:
            await ctx.stream("text").write(place)
            return place

        async def visit(place: str) -> str:
            async with ctx.branch(place):
                return await ctx.step("ask", ask, place)

        return list(await ctx.gather(visit("north"), visit("south")))

    handle = survey.enqueue()
    work_off(app)
    assert handle.result(timeout=20) == ["north", "south"]
    assert sorted(chunk.data for chunk in handle.stream("text")) == ["north", "south"]


async def test_async_reader(app: App) -> None:
    @app.job
    async def count(ctx: Context) -> None:
        for n in range(3):
            await ctx.stream("numbers").write(n)

    handle = await count.aenqueue()
    with working(app):
        assert [chunk.data async for chunk in handle.stream("numbers")] == [0, 1, 2]


def test_a_retried_step_replaces_what_it_wrote(app: App) -> None:
    read_first = threading.Event()

    @app.job(retry=AGAIN)
    async def report(ctx: Context) -> None:
        async def write(what: str) -> str:
            stream = ctx.stream("text")
            await stream.write(f"{what} of attempt {ctx.attempt}, part 1")
            if ctx.attempt == 1 and what == "body":
                import asyncio

                assert await asyncio.to_thread(read_first.wait, 20)
                raise ConnectionError("interrupted")
            await stream.write(f"{what} of attempt {ctx.attempt}, part 2")
            return what

        await ctx.stream("text").write("begin")
        await ctx.step("head", write, "head")
        await ctx.stream("text").write("between")
        await ctx.step("body", write, "body")
        await ctx.stream("text").write("end")

    handle = report.enqueue()
    chunks: list[Chunk] = []
    with working(app):
        for chunk in handle.stream("text"):
            chunks.append(chunk)
            if chunk.data == "body of attempt 1, part 1":
                read_first.set()
    expected = ["begin", *(f"head of attempt 1, part {n}" for n in (1, 2))]
    # Head is recorded. "between" and the body ran again, and what they had written is replaced.
    assert [chunk.data for chunk in chunks[:5]] == [*expected, "between", "body of attempt 1, part 1"]
    assert [(c.data, c.replaces) for c in chunks[5:]] == [
        ("between", True),
        ("body of attempt 2, part 1", True),
        ("body of attempt 2, part 2", False),
        ("end", False),
    ]
    late = [chunk.data for chunk in handle.stream("text")]
    assert late == [*expected, "between", "body of attempt 2, part 1", "body of attempt 2, part 2", "end"]
    assert shown(chunks) == late
    assert [chunk.step for chunk in handle.stream("text")] == [None, 1, 1, None, 2, 2, None]


def test_a_step_that_is_tried_again_in_place_replaces_its_chunks(app: App) -> None:
    tries = []

    def flaky(ctx: SyncContext) -> None:
        tries.append(1)
        ctx.stream("text").write(f"try {len(tries)}")
        if len(tries) < 3:
            raise ConnectionError("again")

    @app.job
    def work(ctx: SyncContext) -> None:
        ctx.step_options(retry=AGAIN).step("flaky", flaky, ctx)

    handle = work.enqueue()
    work_off(app)
    assert [chunk.data for chunk in handle.stream("text")] == ["try 3"]


def test_a_job_that_sleeps_does_not_repeat_its_chunks(app: App) -> None:
    @app.job
    async def work(ctx: Context) -> None:
        await ctx.stream("text").write("before")
        await ctx.sleep("10ms")
        await ctx.stream("text").write("after")

    handle = work.enqueue()
    with working(app):
        assert [(chunk.data, chunk.replaces) for chunk in handle.stream("text")] == [
            ("before", False),
            ("after", False),
        ]


def test_an_attempt_without_steps_replaces_everything(app: App) -> None:
    @app.job(retry=AGAIN)
    async def work(ctx: Context) -> None:
        for n in range(ctx.attempt, 4):
            await ctx.stream("text").write(f"{ctx.attempt}.{n}")
        if ctx.attempt < 3:
            raise ConnectionError("again")

    handle = work.enqueue()
    with working(app):
        chunks = list(handle.stream("text"))
    assert shown(chunks) == ["3.3"]
    assert [chunk.data for chunk in handle.stream("text")] == ["3.3"]


def test_streams_are_bounded(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_writer, "COUNT_LIMIT", 10)
    errors: list[str] = []

    @app.job
    async def work(ctx: Context) -> None:
        stream = ctx.stream("text")
        for value in ("x" * model.CHUNK_LIMIT, object()):
            try:
                await stream.write(value)
            except InvalidPayload as error:
                errors.append(error.code)
        try:
            for n in range(11):
                await stream.write(n)
        except Refused as error:
            errors.append(error.code)

    handle = work.enqueue()
    work_off(app)
    assert errors == ["chunk_too_large", "payload_not_json", "stream_full"]
    assert [chunk.data for chunk in handle.stream("text")] == list(range(10))


def test_large_streams_are_read_page_by_page(app: App) -> None:
    @app.job
    async def work(ctx: Context) -> None:
        for n in range(100):
            await ctx.stream("text").write(f"{n} " + "x" * 30_000)

    handle = work.enqueue()
    work_off(app)
    page = app.jobs.stream(handle.id, "text")
    assert 0 < len(page.chunks) < 100
    assert not page.ended
    assert [int(chunk.data.split()[0]) for chunk in handle.stream("text")] == list(range(100))


def test_nothing_is_written_in_a_transaction_that_ends_the_job(app: App) -> None:
    @app.job
    def work(ctx: SyncContext) -> None:
        ctx.stream("text").write("before")
        with ctx.transaction(), pytest.raises(Conflict, match="open"):
            ctx.stream("text").write("inside")

    handle = work.enqueue()
    work_off(app)
    assert handle.state() == "succeeded"
    assert [chunk.data for chunk in handle.stream("text")] == ["before"]


def test_unknown_positions_and_jobs(app: App) -> None:
    @app.job
    async def work(ctx: Context) -> None: ...

    handle = work.enqueue()
    with pytest.raises(InvalidInput, match="not a position"):
        app.jobs.stream(handle.id, "text", after="nonsense")
    with pytest.raises(NotFound):
        app.jobs.stream("01a1de74-eb8c-70f1-843b-cac5f6817387", "text")
    assert app.jobs.stream(handle.id, "text").chunks == []


async def _nap(ctx: Context) -> None:
    await ctx.sleep("10ms")


def test_code_in_and_after_branches_writes_after_a_suspension(app: App) -> None:
    @app.job
    async def summary(ctx: Context) -> None:
        stream = ctx.stream("text")

        async def part(name: str) -> None:
            async with ctx.branch(name):
                for n in range(3):
                    await stream.write(f"{name}{n} first")
                    await ctx.step("think", _tick)
                    await stream.write(f"{name}{n} second")
                    await ctx.sleep("10ms" if name == "x" else "20ms")
                async with ctx.branch("inner"):
                    await stream.write(f"{name} inside")
                    await _nap(ctx)
                await stream.write(f"{name} end")

        await stream.write("before")
        await ctx.gather(part("x"), part("y"))
        await stream.write("after the branches")
        await _nap(ctx)
        await stream.write("end")

    handle = summary.enqueue()
    with working(app):
        chunks = list(handle.stream("text"))
    written = shown(chunks)
    assert handle.state() == "succeeded"
    for name in "xy":
        rounds = [f"{name}{n} {when}" for n in range(3) for when in ("first", "second")]
        own = [data for data in written if data.startswith(name)]
        assert own == [*rounds, f"{name} inside", f"{name} end"]
    assert len(written) == len(set(written)) == 19
    assert {"before", "after the branches", "end"} < set(written)
    assert sorted(chunk.data for chunk in handle.stream("text")) == sorted(written)


def test_code_after_steps_with_a_name_writes_after_a_retry(app: App) -> None:
    @app.job(retry=AGAIN)
    async def work(ctx: Context) -> None:
        stream, named = ctx.stream("text"), ctx.step_options(unordered=True)
        await stream.write("before")
        await ctx.gather(named.step("a", _tick), named.step("b", _tick))
        await stream.write(f"after, in attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ConnectionError("interrupted")
        await stream.write("end")

    handle = work.enqueue()
    with working(app):
        chunks = list(handle.stream("text"))
    assert shown(chunks) == ["before", "after, in attempt 2", "end"]
    assert [chunk.data for chunk in handle.stream("text")] == shown(chunks)


def test_a_retried_step_with_a_name_replaces_what_it_wrote(app: App) -> None:
    @app.job(retry=AGAIN)
    async def work(ctx: Context) -> None:
        async def ask(what: str) -> None:
            await ctx.stream("text").write(f"{what} of attempt {ctx.attempt}")
            if what == "first" and ctx.attempt == 1:
                raise ConnectionError("interrupted")

        named = ctx.step_options(unordered=True)
        asked = await gather(*(named.step(what, ask, what) for what in ("first", "second")), return_exceptions=True)
        for error in filter(None, asked):
            raise error

    handle = work.enqueue()
    with working(app):
        assert handle.result(timeout=20) is None
    assert sorted(chunk.data for chunk in handle.stream("text")) == ["first of attempt 2", "second of attempt 1"]


@pytest.mark.every_case
@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_retried_step_in_a_branch_replaces_what_it_wrote(app: App, form: str) -> None:
    """Its position is another one in each attempt, as a later branch was recorded meanwhile."""
    if form == "async":

        @app.job(name="report", retry=AGAIN)
        async def report(ctx: Context) -> None:
            async def ask(what: str) -> None:
                await ctx.stream("text").write(f"{what} of attempt {ctx.attempt}")
                if what == "first" and ctx.attempt < 3:
                    raise ConnectionError("interrupted")

            async def part(what: str) -> None:
                async with ctx.branch(what):
                    await ctx.stream("text").write(f"{what} begins in attempt {ctx.attempt}")
                    await ctx.step("ask", ask, what)

            results = await gather(part("first"), part("second"), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
    else:

        @app.job(name="report", retry=AGAIN)
        def report(ctx: SyncContext) -> None:
            def ask(what: str) -> None:
                ctx.stream("text").write(f"{what} of attempt {ctx.attempt}")
                if what == "first" and ctx.attempt < 3:
                    raise ConnectionError("interrupted")

            failed: Exception | None = None
            for what in ("first", "second"):
                try:
                    with ctx.branch(what):
                        ctx.stream("text").write(f"{what} begins in attempt {ctx.attempt}")
                        ctx.step("ask", ask, what)
                except ConnectionError as error:
                    failed = error
            if failed is not None:
                raise failed

    handle = report.enqueue()
    with working(app):
        chunks = list(handle.stream("text"))
    assert handle.result(timeout=20) is None
    stored = [chunk.data for chunk in handle.stream("text")]
    assert sorted(shown(chunks)) == sorted(stored)
    assert sorted(stored) == [
        *("first begins in attempt 3", "first of attempt 3", "second begins in attempt 1", "second of attempt 1"),
    ]
