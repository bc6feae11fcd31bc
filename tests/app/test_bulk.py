"""`enqueue_many`: parts are sent while the next ones are prepared, and the batch is still all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import App, Kind, State
from holdfast.app import enqueue
from holdfast.app.internals import session_of
from holdfast.errors import Conflict, InvalidArguments, Refused
from holdfast.kind import Prepared

pytestmark = pytest.mark.req("HF-5", "SC-19")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "BATCH", 20)


@pytest.fixture
def double(app: App) -> Kind[..., Any]:
    @app.job()
    async def double(n: int) -> int:
        return 2 * n

    return double


def stored(app: App) -> list[int]:
    """The enqueued numbers, in the order of the job ids."""
    numbers, before = [], None
    while page := app.jobs.list(tenant="*", limit=100, before=before):
        numbers += [job.payload["n"] for job in page]
        before = page[-1].id
    return numbers[::-1]


@pytest.mark.parametrize("count", [0, 1, 19, 20, 21, 95])
def test_handles_follow_the_order_of_the_calls(app: App, double: Kind[..., Any], count: int) -> None:
    handles = app.enqueue_many(double.prepare(n) for n in range(count))
    assert [handle.get().payload["n"] for handle in handles] == list(range(count))
    assert all(handle.created and handle.state() is State.QUEUED for handle in handles)
    assert stored(app) == list(range(count))


def test_keys_tenants_and_plain_calls_can_be_mixed(app: App, double: Kind[..., Any]) -> None:
    first = double.using(key="k").enqueue(1)

    def calls() -> Iterator[Prepared[Any]]:
        for n in range(60):
            if n % 10 == 3:
                yield double.using(tenant="other").prepare(n)
            elif n == 25:
                yield double.using(key="k").prepare(1)
            else:
                yield double.prepare(n)

    handles = app.enqueue_many(calls())
    assert [handle.tenant for handle in handles] == ["other" if n % 10 == 3 else "default" for n in range(60)]
    assert (handles[25].id, handles[25].created, handles[25].reason) == (first.id, False, "duplicate_key")
    assert [h.get().payload["n"] for n, h in enumerate(handles) if n != 25] == [n for n in range(60) if n != 25]


def test_invalid_call_stores_no_job(app: App, double: Kind[..., Any]) -> None:
    def calls() -> Iterator[Prepared[Any]]:
        for n in range(70):
            yield double.prepare("no number" if n == 65 else n)

    with pytest.raises(InvalidArguments):
        app.enqueue_many(calls())
    assert stored(app) == []


def test_refused_part_rolls_back_the_whole_batch(app: App, double: Kind[..., Any]) -> None:
    seen = double.enqueue(-1)

    def calls() -> Iterator[Prepared[Any]]:
        for n in range(70):
            prepared = double.prepare(n)
            if n == 45:
                prepared.spec.id = seen.id
            yield prepared

    with pytest.raises(Conflict):
        app.enqueue_many(calls())
    assert stored(app) == [-1]


@pytest.mark.timeout(60)
def test_refused_batch_ends_a_long_call(app: App) -> None:
    """The caller waits for the store to take a batch: it must also learn that no more will be taken."""
    prepared = 0

    @app.job()
    async def long(text: str) -> None: ...

    def calls() -> Iterator[Prepared[Any]]:
        nonlocal prepared
        while prepared < 2_000:
            prepared += 1
            yield long.prepare("x" * 300)

    app.payload_rules.set("long", max_bytes=256)
    with pytest.raises(Refused):
        app.enqueue_many(calls())
    assert prepared < 2_000 or session_of(app).store.pipeline_depth == 1  # SQLite prepares all of them first
    assert stored(app) == []


def test_call_keeps_the_id_it_was_enqueued_with(app: App, double: Kind[..., Any]) -> None:
    calls = [double.prepare(n) for n in range(60)]
    handles = app.enqueue_many(calls)
    assert [call.spec.id for call in calls] == [handle.id for handle in handles]
    with pytest.raises(Conflict):
        app.enqueue_many(calls)
    with pytest.raises(Conflict):
        app.enqueue_many([double.prepare(-1)] * 60)
    assert stored(app) == list(range(60))


def test_jobs_of_one_kind_keep_its_options(app: App) -> None:
    @app.job(queue="slow", priority=7, tags=["a"])
    async def double(n: int) -> int:
        return 2 * n

    handles = app.enqueue_many(double.prepare(n) for n in range(45))
    jobs = [handle.get() for handle in handles]
    assert {(job.queue, job.priority, job.tags) for job in jobs} == {("slow", 7, ("a",))}
