"""A web site without database access: it enqueues, decides and follows events over HTTP.

Run it: python examples/over_http.py. It serves an app on a free local port, with tokens of two roles, and plays three
programs: the site (a producer), a person in the office (an approver), and a worker next to the database.
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
    """What ``holdfast serve`` does, in a thread."""
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
            said = [f"asked twice, one job: {again.id == large.id}"]
            app.run_worker(burst=True)
            said.append(small.result(timeout=10))
            (approval,) = ada.approvals.list()
            said.append(f"{approval.summary} {ada.approvals.approve(approval.id, comment='a good customer').state}")
            try:
                ada.enqueue("refund", {"order": 9, "amount": 1})
            except holdfast.errors.Refused as error:
                said.append(f"ada may not enqueue: {error.code}")
            app.run_worker(burst=True)
            said.append(large.result(timeout=10))
            history = [event for event in large.history() if event.type in ("enqueue", "approve")]
            said += [f"{event.type} by {event.actor}" for event in history]
        return said


if __name__ == "__main__":
    for line in main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///over_http.db"):
        print(line)
