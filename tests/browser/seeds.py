"""Databases for the browser: one full of hostile text, and an ordinary one."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import App, Context, PayloadPolicy, Retry
from holdfast.app.internals import session_of
from tests.browser import hostile

ONCE = Retry(max_attempts=1)
MANY = 60
"""More than a page."""


def hostile_app(folder: Path) -> App:
    """Hostile text in every field, and a job in each lasting state."""
    app = App(f"sqlite:///{folder}/hostile.db", name="tests", enqueued_by=f"ada {hostile.IMAGE}")

    @app.job(hostile.KIND, retry=ONCE)
    async def mail(ctx: Context, text: Any) -> Any:
        ctx.log.info("a line %s", hostile.ALL)
        await ctx.progress(0.5, hostile.ALL)
        await ctx.checkpoint.save(hostile.DOCUMENT, hostile.SCRIPT)
        await ctx.step(hostile.BREAK, lambda: hostile.DOCUMENT)
        await ctx.artifact(hostile.IMAGE, hostile.LINK)
        return hostile.DOCUMENT

    @app.job("breaks", retry=ONCE, tags=(hostile.TAG,))
    async def breaks(n: int) -> None:
        raise ValueError(hostile.ALL)

    @app.job("asks")
    async def asks(ctx: Context) -> None:
        await ctx.approval(hostile.IMAGE, summary=hostile.ALL)

    @app.job("secret", payload_rules=PayloadPolicy(restricted=True))
    async def secret(canary: str) -> str:
        return canary

    @app.job("waits", queue=hostile.QUEUE)
    async def waits(n: int) -> None: ...

    mail.using(tags=(hostile.TAG, hostile.SCRIPT), correlation_id=hostile.IMAGE, source_ref=hostile.LINK).enqueue(
        hostile.DOCUMENT
    )
    for n in range(3):
        breaks.enqueue(n)
    asks.enqueue()
    secret.enqueue("canary-2f9c1")
    app.schedules.add(hostile.SCHEDULE, "0 9 * * *", kind="waits", payload={"n": 1})
    app.run_worker(burst=True, concurrency=4)
    app.enqueue_many(waits.prepare(n) for n in range(MANY))
    waits.using(delay=3600, queue="later").enqueue(99)
    app.jobs.cancel(waits.enqueue(100).id, reason=hostile.ALL[:400])
    return app


def usual_app(folder: Path) -> App:
    """A shop on an ordinary morning, for pictures."""
    app = App(f"sqlite:///{folder}/shop.db", name="shop", enqueued_by="ada@shop.example")
    chance = random.Random(7)

    @app.job("mail.send", queue="mail", retry=ONCE)
    async def send(ctx: Context, to: str, template: str) -> dict[str, Any]:
        await ctx.progress(1.0, f"sent to {to}")
        if chance.random() < 0.08:
            raise ConnectionError("smtp.shop.example refused the connection")
        return {"message_id": f"<{ctx.job_id[:8]}@shop.example>", "to": to}

    @app.job("invoice.render", queue="documents", retry=ONCE)
    async def render(ctx: Context, order: int) -> dict[str, Any]:
        lines = await ctx.step("load lines", lambda: [{"sku": "A-7", "qty": 2, "price": 12.5}])
        await ctx.step("render", lambda: len(lines))
        await ctx.artifact(f"invoice-{order}.pdf", f"s3://invoices/{order}.pdf")
        if order % 29 == 0:
            raise KeyError("vat_rate")
        return {"order": order, "total": 25.0, "pages": 1}

    @app.job("refund.pay", queue="payments")
    async def refund(ctx: Context, order: int, amount: float) -> None:
        await ctx.approval("refund over 100", summary=f"Refund {amount:.2f} for order {order}")

    @app.job("stock.sync", queue="stock")
    async def stock(warehouse: str) -> None: ...

    for minutes in range(-58, 1):  # one hour, by the clock of the database
        app.migrate()
        session_of(app).store.run(session_of(app).store.clock.set(timedelta(minutes=minutes), None))
        for n in range(chance.randrange(3, 10)):
            name = f"customer{chance.randrange(900)}@mail.example"
            send.using(tags=("welcome",) if n % 3 else ("newsletter",)).enqueue(name, "welcome")
        for _ in range(chance.randrange(1, 5)):
            render.enqueue(1000 + chance.randrange(500))
        if minutes % 16 == 0:
            refund.enqueue(1040 - minutes, 120.0 - 3 * minutes)
        app.run_worker(burst=True, concurrency=8, queues=("mail", "documents", "payments"))
    for warehouse in ("lyon", "porto", "gdansk", "bari", "oslo"):
        stock.enqueue(warehouse)
        stock.using(delay=1800).enqueue(warehouse)
    send.using(priority=5).enqueue("vip@mail.example", "apology")
    app.schedules.add("stock every hour", "0 * * * *", kind="stock.sync", payload={"warehouse": "lyon"})
    app.schedules.add(
        "morning digest",
        "0 7 * * MON-FRI",
        kind="mail.send",
        tz="Europe/Paris",
        payload={"to": "team@shop.example", "template": "digest"},
    )
    return app
