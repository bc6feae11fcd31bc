"""The connection limit of an app: a few connections are enough for a worker and its handlers."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from holdfast import App, Context, SyncContext, errors
from holdfast.app.internals import session_of
from tests.app.conftest import NewApp
from tests.support.workers import work_off

pytestmark = pytest.mark.req("CX-15", "SC-18")

JOBS = 12
LINGERING = 0.02  # seconds in which other jobs need a connection too


def _identity(number: int) -> int:
    return number


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_worker_and_its_handlers_need_few_connections(new_app: NewApp, size: int) -> None:
    app = new_app(pool_size=size)

    @app.job()
    async def awaiting(ctx: Context, number: int) -> int:
        await ctx.step("first", _identity, number)
        await later.aenqueue(number)
        return number

    @app.job()
    def plain(ctx: SyncContext, number: int) -> int:
        ctx.progress(0.5)
        time.sleep(LINGERING)
        later.enqueue(number)
        return number

    @app.job()
    def later(number: int) -> int:
        return number

    handles = [kind.enqueue(n) for n in range(JOBS) for kind in (awaiting, plain)]
    work_off(app, concurrency=JOBS)
    assert [each.result(timeout=0) for each in handles] == [n for n in range(JOBS) for _ in range(2)]
    assert len(app.jobs.list(kind="later", state="succeeded", limit=100)) == 2 * JOBS


def test_connection_limit_of_a_process_follows_from_the_pool_size(postgres_url: str) -> None:
    """The store's tests check that it opens no more: tests/contract/test_loop_connections.py."""
    for app, most in ((App(postgres_url), 19), (App(postgres_url, pool_size=2), 7)):
        with closing(app):
            (finding,) = [each for each in session_of(app).store.diagnose() if each.name == "connections"]
            assert finding.says.endswith(f"a worker process opens {most} at most")


@pytest.mark.parametrize("size", [0, -1, 1_001, True, 2.0, "8"])
@pytest.mark.parametrize("url", ["sqlite:///jobs.db", "postgresql://user@127.0.0.1:1/none"])
def test_invalid_pool_sizes_are_refused(url: str, size: object) -> None:
    with pytest.raises(errors.InvalidSetting, match="from 1 to 1000") as refused:
        App(url, pool_size=size)  # type: ignore[arg-type]
    assert refused.value.code == "invalid_setting"
