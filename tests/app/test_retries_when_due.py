"""A worker makes its own retries ready when they are due, and each retry is recorded once."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from holdfast import App, Backoff, Context, Retry, State
from tests.app.conftest import NewApp
from tests.app.test_hostile_handlers import refuse
from tests.support.proxy import Fate, Proxy
from tests.support.waiting import until
from tests.support.workers import working

pytestmark = pytest.mark.req("JF-7", "CX-4")

NEVER = 120.0
"""Maintenance is too slow to make any of these tests pass."""
SOON = Retry(max_attempts=3, backoff=Backoff(base=0.01, jitter=False))
ENDS = (State.SUCCEEDED, State.DEAD_LETTER)
RETRIED = ["enqueue", "take", "fail", "retry", "due", "take", "succeed"]


def steps(app: App, job_id: str) -> list[str]:
    return [event.type for event in app.jobs.history(job_id)]


def test_failed_jobs_run_again_when_due_and_the_ledger_has_each_retry_once(app: App, new_app: NewApp) -> None:
    worker_app = new_app()
    tries: Counter[int] = Counter()

    @worker_app.job(retry=SOON)
    def work(n: int) -> int:
        tries[n] += 1
        if n % 10 == 0 and tries[n] == 1:
            raise ValueError(f"try {n} again")
        return n

    with working(worker_app, promote_every=NEVER):
        handles = worker_app.enqueue_many([work.prepare(n) for n in range(100)])
        assert [handle.result(timeout=30) for handle in handles] == list(range(100))
    assert set(tries.values()) == {1, 2}
    for n, handle in enumerate(handles):
        assert steps(app, handle.id) == (RETRIED if n % 10 == 0 else ["enqueue", "take", "succeed"])


def test_snoozed_job_runs_again_when_due(new_app: NewApp) -> None:
    worker_app = new_app()
    tries: list[int] = []

    @worker_app.job()
    async def work(ctx: Context) -> int:
        tries.append(1)
        if len(tries) < 3:
            ctx.snooze(0.05)
        return len(tries)

    with working(worker_app, promote_every=NEVER):
        assert work.enqueue().result(timeout=30) == 3


def test_one_result_that_is_refused_does_not_hold_up_the_retries(app: App, new_app: NewApp, url: str) -> None:
    worker_app = new_app()
    tries: Counter[int] = Counter()

    @worker_app.job(retry=SOON)
    async def work(n: int) -> str | None:
        tries[n] += 1
        if n % 2 and tries[n] == 1:
            raise ValueError("again \x00 \ud800")
        return "poison" if n == 4 else None

    refuse(url, "poison")
    handles = worker_app.enqueue_many([work.prepare(n) for n in range(10)])
    with working(worker_app, promote_every=NEVER):
        until(lambda: all(handle.get().state in ENDS for handle in handles), "all jobs have ended")
    assert [n for n, handle in enumerate(handles) if handle.get().state == State.DEAD_LETTER] == [4]
    assert handles[4].get().error_code == "outcome_refused"
    assert all(steps(app, handles[n].id) == RETRIED for n in (1, 3, 5, 7, 9))


@pytest.mark.req("DP-5", "CX-15")
@pytest.mark.parametrize("fate", ["answer", "request"])
def test_exchange_with_failures_whose_response_is_lost_records_each_once(postgres_url: str, fate: Fate) -> None:
    tries: Counter[int] = Counter()
    with Proxy(postgres_url) as proxy, closing(App(proxy.url)) as app:

        @app.job(retry=SOON)
        async def work(n: int) -> None:
            tries[n] += 1
            if n < 5 and tries[n] == 1:
                if n == 0:
                    proxy.cut(b"exchange", fate)
                raise ValueError("again")

        handles = app.enqueue_many([work.prepare(n) for n in range(10)])
        with working(app, promote_every=NEVER):
            until(lambda: all(handle.get().state in ENDS for handle in handles), "all jobs have ended")
        assert proxy.cuts == 1
        for n, handle in enumerate(handles):  # those that the lost response had claimed were returned unstarted
            types = Counter(steps(app, handle.id))
            assert (types["fail"], types["retry"], types["succeed"]) == ((1, 1, 1) if n < 5 else (0, 0, 1))
    assert set(tries.values()) == {1, 2}
