"""The job that tells people belongs to the job that asked (CX-5, DP-10)."""

from __future__ import annotations

import pytest

from holdfast import App, ApprovalNotice, Context
from tests.support.workers import work_off

pytestmark = pytest.mark.req("CX-5", "DP-10")

WORKFLOW = "0192f3a4-0000-7000-8000-000000000007"


@pytest.mark.parametrize("correlation", [None, "campaign-7"])
def test_a_notice_is_a_child_of_the_job_that_asks(app: App, correlation: str | None) -> None:
    @app.approval_notifier()
    def tell(notice: ApprovalNotice) -> None: ...

    @app.job(queue="money")
    async def pay(ctx: Context) -> None:
        await ctx.approval("pay", summary="Pay")

    belongs = pay.using(workflow_id=WORKFLOW)
    handle = (belongs if correlation is None else belongs.using(correlation_id=correlation)).enqueue()
    work_off(app, queues=("money",))
    (notice,) = app.jobs.list(kind="approval_notice")
    assert (notice.parent_id, notice.queue, notice.enqueued_by) == (handle.id, "money", "approval pay")
    assert notice.correlation_id == (correlation or handle.id)
    assert notice.workflow_id == WORKFLOW


def test_a_worker_that_ends_when_nothing_is_left_has_told_people(app: App) -> None:
    told: list[str] = []

    @app.approval_notifier()
    def tell(notice: ApprovalNotice) -> None:
        told.append(notice.approval_id)

    @app.job()
    async def pay(ctx: Context) -> None:
        await ctx.approval("pay", summary="Pay")

    for times in range(1, 9):  # it was left behind two times in five
        pay.enqueue()
        work_off(app)
        assert len(told) == times
