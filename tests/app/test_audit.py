"""The audit trail through the public API: workers seal events, and any reader can verify them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.errors import InvalidInput, NotFound
from holdfast.features.audit.operations import verify_file
from holdfast.worker.maintenance import Sealing, release
from holdfast.worker.options import WorkerKeywords
from tests.app.conftest import NewApp
from tests.support.waiting import until

pytestmark = pytest.mark.req("HF-4", "CX-4")

OFTEN = WorkerKeywords(sweep_every=0.05, promote_every=0.05, poll=0.05)


async def test_concurrent_workers_seal_committed_events_in_one_chain(app: App, new_app: NewApp) -> None:
    """Two workers seal at once; a third worker has sealing disabled."""
    other = new_app()

    for each in (app, other):

        @each.job(name="work")
        async def work(number: int) -> None: ...

    for number in range(20):
        app.enqueue("work", {"number": number})
    workers = [
        app.worker(**OFTEN),
        other.worker(**OFTEN),
        other.worker(**(OFTEN | {"sealing": False})),
    ]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    await asyncio.to_thread(until, lambda: app.audit.verify().events == 60, "all sixty events are sealed")
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running)
    for each in (app, other):
        await session_of(each).store.leave_loop()
    report = app.audit.verify()
    assert (report.ok, report.events, report.unsealed) == (True, 60, 0)
    block = session_of(app).store.run(session_of(app).store.audit.get_seal())
    assert block is not None
    assert block.version == release()


def test_tick_seals_events(app: App) -> None:
    @app.job()
    async def work() -> None: ...

    work.enqueue()
    app.tick()
    work.enqueue()
    app.tick()
    assert app.audit.verify().seals == 2


async def test_backlog_is_sealed_within_a_time_share(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run seals at least one block, stops when its share of the time is used, and then pauses."""
    monkeypatch.setattr("holdfast.worker.maintenance.BLOCK", 2)
    monkeypatch.setattr("holdfast.worker.maintenance.SHARE", 1e-9)

    @app.job()
    async def work() -> None: ...

    for _ in range(7):
        work.enqueue()
    little = Sealing(1.0)
    for _ in range(2):
        await little(session_of(app).store)
        assert app.audit.verify().events == 2
    await Sealing(3.6e12)(session_of(app).store)
    assert (app.audit.verify().events, app.audit.verify().seals) == (7, 4)


def test_job_events_show_their_seals(app: App, new_app: NewApp) -> None:
    @app.job()
    async def work() -> None: ...

    with pytest.raises(NotFound, match="nothing_sealed"):
        app.audit.anchor()
    handle = work.enqueue()
    app.run_worker(burst=True, sealing=False)
    assert app.audit.seal() == 3
    app.enqueue("other", {})
    assert asyncio.run(app.audit.aseal()) == 1
    redriven = work.enqueue()
    shown = app.audit.get(handle.id)
    assert [(each.event.type, each.state, each.seal) for each in shown] == [
        ("enqueue", "sealed", 1),
        ("take", "sealed", 1),
        ("succeed", "sealed", 1),
    ]
    assert [each.state for each in app.audit.get(redriven.id)] == ["unsealed"]
    with pytest.raises(NotFound):
        new_app(tenant="other").audit.get(handle.id)
    assert app.audit.anchor().number == 2
    with pytest.raises(NotFound, match="seal_not_found"):
        app.audit.verify(begin=9)
    assert app.audit.verify(begin=2).events == 1


def test_export_writes_the_selected_part(app: App, tmp_path: Path) -> None:
    for number in range(3):
        app.enqueue("work", {"number": number})
        app.audit.seal()
    now = session_of(app).store.run(session_of(app).store.clock.now())
    seen: list[int] = []
    assert app.audit.export(tmp_path / "all.jsonl", progress=lambda seals, events: seen.append(events)) == 3
    assert app.audit.export(tmp_path / "none.jsonl", since=now + timedelta(hours=1)) == 0
    assert app.audit.export(tmp_path / "some.jsonl", since=now - timedelta(hours=1)) == 3
    assert seen == [1, 2, 3]
    assert verify_file(tmp_path / "none.jsonl").ok
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(InvalidInput, match="invalid_audit_file"):
        verify_file(tmp_path / "other.jsonl")
