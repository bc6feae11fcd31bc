"""Jobs over HTTP: a web site without database access enqueues jobs, and an approver decides.

Run: python examples/over_http.py [URL]. It serves an app on a free local port and plays three programs: the site (with
a token of the role producer), a person (with the role approver), and a worker, which uses the database.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import uvicorn

import holdfast
from holdfast.remote import Client
from holdfast.server.app import make_service
from holdfast.server.sessions import tokens_of


def make_app(url: str) -> holdfast.App:
    app = holdfast.App(url, name="shop", enqueued_by="the shop")

    @app.job
    async def refund(ctx: holdfast.Context, order: int, amount: int) -> str:
        if amount > 100:
            await ctx.approval("large-refund", summary=f"Refund {amount} for order {order}?", not_requester=True)
        return f"order {order}: {amount} refunded"

    return app


@contextmanager
def serving(app: holdfast.App) -> Iterator[str]:
    """Serve the HTTP API in a thread. In production, run ``holdfast serve``."""
    config = uvicorn.Config(make_service(app, authenticate=tokens_of(app)), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def main(url: str) -> list[str]:
    with closing(make_app(url)) as app, serving(app) as address:
        site = app.tokens.issue("site", roles=["producer"]).text
        office = app.tokens.issue("ada", roles=["approver"]).text
        with Client(address, token=site) as shop, Client(address, token=office) as ada:
            small = shop.enqueue("refund", {"order": 7, "amount": 20}, key="refund-7")
            large = shop.enqueue("refund", {"order": 8, "amount": 500}, key="refund-8")
            again = shop.enqueue("refund", {"order": 8, "amount": 500}, key="refund-8")
            # The key makes the second call return the first job.
            lines = [f"enqueued twice, one job: {again.id == large.id}"]
            app.run_worker(burst=True)
            lines.append(small.result(timeout=10))
            (approval,) = ada.approvals.list()
            lines.append(f"{approval.summary} {ada.approvals.approve(approval.id, comment='a good customer')}")
            try:
                ada.enqueue("refund", {"order": 9, "amount": 1})
            except holdfast.errors.Refused as error:
                lines.append(f"ada may not enqueue: {error.code}")
            app.run_worker(burst=True)
            lines.append(large.result(timeout=10))
            history = [event for event in large.history() if event.type in ("enqueue", "approve")]
            lines += [f"{event.type} by {event.actor}" for event in history]
        return lines


if __name__ == "__main__":
    for line in main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///over_http.db"):
        print(line)
