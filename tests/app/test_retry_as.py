"""`@app.job(retry_as="new_job")`: each retry is a separate job, and waiting callers follow the chain (SC-6, SC-12)."""

from __future__ import annotations

import pytest

from holdfast import App, Backoff, Context, Retry, State
from holdfast.app.internals import session_of
from holdfast.errors import InvalidSetting, JobFailed, WaitTimeout
from tests.support.workers import work_off, working

pytestmark = pytest.mark.req("SC-6", "SC-12")

AT_ONCE = Retry(max_attempts=3, backoff=Backoff(base=0.01, factor=1.0, cap=0.01))


def test_waiting_for_a_result_follows_the_chain(app: App) -> None:
    ids: list[str] = []

    @app.job(retry=AT_ONCE, retry_as="new_job")
    async def third_time_lucky(ctx: Context) -> int:
        ids.append(ctx.job_id)
        if len(ids) < 3:
            raise ValueError(f"no {len(ids)}")
        return 7

    handle = third_time_lucky.using(key="once", tags=["x"]).enqueue()
    with working(app):
        assert handle.result(15) == 7
    assert ids[0] == handle.id
    assert len(set(ids)) == 3
    for job_id in ids:
        assert [job.id for job in app.jobs.chain(job_id)] == ids
    assert [job.state for job in app.jobs.chain(handle.id)] == [State.FAILED, State.FAILED, State.SUCCEEDED]
    assert [job.tags for job in app.jobs.chain(handle.id)] == [("x",)] * 3
    assert handle.state() is State.FAILED, "the state of the first job does not change"
    again = third_time_lucky.using(key="once").enqueue()
    assert (again.created, again.id, again.result(5)) == (False, ids[-1], 7)


async def test_async_wait_follows_the_chain_to_the_dead_letter(app: App) -> None:
    @app.job(retry=AT_ONCE, retry_as="new_job")
    def never() -> None:
        raise ValueError("no")

    handle = await never.aenqueue()
    with pytest.raises(WaitTimeout, match=r"after 0\.1"):
        await handle.await_end(0.1)
    with working(app), pytest.raises(JobFailed, match="dead_letter") as failed:
        await handle.aresult(15)
    last = app.jobs.chain(handle.id)[-1]
    assert last.id in str(failed.value)
    assert (last.retries, last.attempt, len(app.jobs.chain(last.id))) == (2, 1, 3)
    if not session_of(app).store.embedded:
        await session_of(app).store.leave_loop()


def test_invalid_retry_as_options_are_refused(app: App) -> None:
    with pytest.raises(InvalidSetting) as refused:
        app.job(retry_as="new_job", at_most_once=True)
    assert refused.value.code == "conflicting_options"

    @app.job(retry_as="elsewhere")  # type: ignore[call-overload]
    def odd() -> None: ...

    with pytest.raises(InvalidSetting) as refused:
        odd.enqueue()
    assert refused.value.code == "invalid_retry"
    job = app.enqueue("by.name", retry_as="new_job").get()
    assert job.retry_as == "new_job"
    assert app.jobs.chain(job.id) == [job]
    work_off(app)
