"""Webhooks: a receiver that verifies messages, a webhook for failed jobs and orders, and a message that is resent.

Run: python examples/webhooks.py [URL]
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import holdfast
from holdfast import webhooks
from holdfast.errors import HoldfastError
from holdfast.outgoing import EgressPolicy


class Receiver(BaseHTTPRequestHandler):
    """A receiver, as in any web framework: verify the message, skip duplicates, process it, respond."""

    seen = webhooks.Seen()
    received: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            message = webhooks.verify(self.headers.items(), body, os.environ["HOLDFAST_SECRET_OPS_HOOK"])
        except HoldfastError as error:
            self.received.append(f"refused: {error.code}")
            self.send_response(400)
        else:
            duplicate = "" if self.seen.first(message.id) else " (duplicate)"
            self.received.append(f"{message.json()['type']}{duplicate}")
            self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


async def main(url: str = "sqlite:///webhooks.db") -> list[str]:
    received: list[str] = []
    Receiver.received = received
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    os.environ["HOLDFAST_SECRET_OPS_HOOK"] = webhooks.new_secret()
    # Only because the receiver is local: requests to private addresses are refused by default.
    app = holdfast.App(url, egress=EgressPolicy(ports=(port,), allow=("127.0.0.1/32",)))

    @app.job(retry=holdfast.Retry(max_attempts=1))
    async def pay(amount: int) -> str:
        if amount > 100:
            raise ValueError("the card was declined")
        return "paid"

    try:
        await app.webhooks.aadd(
            "ops", f"http://127.0.0.1:{port}/hooks", secrets="OPS_HOOK", wants=["job.dead_letter", "order.*"]
        )
        await app.webhooks.atest("ops")
        await pay.aenqueue(7)
        await pay.aenqueue(700)
        await app.asend_event("order.paid", {"order": 7})
        while (await app.atick()).taken:  # instead of a worker, which would also deliver the webhooks
            pass
        last = (await app.webhooks.adeliveries("ops"))[0]
        await app.webhooks.aresend("ops", last.message)
        await app.atick()
        for line in received:
            print(line)
        for delivery in await app.webhooks.adeliveries("ops"):
            print(f"{delivery.type:16} attempt {delivery.attempt}: {delivery.status}")
        return received
    finally:
        await app.aclose()
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
