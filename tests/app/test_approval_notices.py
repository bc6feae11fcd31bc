"""The notifier job of an approval is a child of the requesting job (CX-5, DP-10)."""

from __future__ import annotations

import pytest

from holdfast import App, ApprovalNotice, Context
from tests.support.workers import work_off

pytestmark = pytest.mark.req("CX-5", "DP-10")

WORKFLOW = "0192f3a4-0000-7000-8000-000000000007"


@pytest.mark.parametrize("correlation", [None, "campaign-7"])
def test_notifier_job_is_a_child_of_the_requesting_job(app: App, correlation: str | None) -> None:
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


def test_burst_worker_runs_notifier_jobs_before_it_ends(app: App) -> None:
    notified: list[str] = []

    @app.approval_notifier()
    def tell(notice: ApprovalNotice) -> None:
        notified.append(notice.approval_id)

    @app.job()
    async def pay(ctx: Context) -> None:
        await ctx.approval("pay", summary="Pay")

    for times in range(1, 9):  # without the fix it was left behind two times in five
        pay.enqueue()
        work_off(app)
        assert len(notified) == times
