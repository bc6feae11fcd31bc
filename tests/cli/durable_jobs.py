"""Jobs with steps, waits, sleeps and approvals, run until they suspend: for commands that show and decide them."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

from holdfast import App, Approval, Context, Retry
from tests.support.workers import work_off

ONCE = Retry(max_attempts=1)
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "in euros"},
        "reason": {"type": "string"},
        "urgent": {"type": "boolean"},
        "colour": {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]},
    },
    "required": ["limit", "reason"],
    "additionalProperties": False,
    "$defs": {"Colour": {"enum": ["red", "green"], "type": "string"}},
}


def asked(url: str, name: str = "big-payment", *, tenant: str = "default", **options: Any) -> Approval:
    """Run a job `pay`, enqueued by `tester`, until it waits for an approval; return the approval."""
    with closing(App(url, tenant=tenant, name="tests", enqueued_by="tester")) as app:

        @app.job("pay")
        async def pay(ctx: Context) -> str:
            await ctx.approval(name, **({"summary": "Pay 12,000"} | options))
            return "paid"

        handle = pay.enqueue()
        work_off(app)
        (approval,) = app.approvals.list(job_id=handle.id)
        return approval


def begun(url: str, *plan: tuple[str, Any], tenant: str = "default") -> str:
    """Run a job `plan` that makes these durable calls in order, until it suspends or ends; return its id.

    `("step", name)` returns its name, `("fails", name)` raises, `("fails", (name, retry))` with a policy,
    `("caught", name)` raises and is caught.
    """
    with closing(App(url, tenant=tenant, name="tests", enqueued_by="tester")) as app:
        declare(app, *plan)
        handle = app.enqueue("plan")
        work_off(app)
        return handle.id


def declare(app: App, *plan: tuple[str, Any]) -> list[str]:
    """Declare the kind; return a list to which the names of executed steps are added."""
    ran: list[str] = []

    def note(name: str) -> str:
        ran.append(name)
        return name

    def fail(name: str) -> None:
        ran.append(name)
        raise ConnectionError(f"{name} is away")

    @app.job("plan", retry=ONCE)
    async def run(ctx: Context) -> None:
        for kind, what in plan:
            match kind:
                case "step":
                    await ctx.step(what, note, what)
                case "fails":
                    name, retry = what if isinstance(what, tuple) else (what, ONCE)
                    await ctx.step_options(retry=retry).step(name, fail, name)
                case "caught":
                    with suppress(ConnectionError):
                        await ctx.step(what, fail, what)
                case "sleep":
                    await ctx.sleep(what)
                case "event":
                    await ctx.wait_for_event(what[0], match=what[1], timeout=what[2])
                case "approval":
                    await ctx.approval(what, summary="May it?", approvers=["ada", "bob"], quorum=2, expires_in="1h")
                case _:
                    raise AssertionError(kind)

    return ran


def go_on(url: str, *plan: tuple[str, Any], tenant: str = "default") -> list[str]:
    """Run all claimable jobs with this plan; return the names of the executed steps."""
    with closing(App(url, tenant=tenant, name="tests", enqueued_by="tester")) as app:
        ran = declare(app, *plan)
        work_off(app)
        return ran
