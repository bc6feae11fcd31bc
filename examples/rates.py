"""Fetch exchange rates with a secret token, and write a report. The token is in no table, log or payload.

    python examples/rates.py                                   # on a new SQLite file
    HOLDFAST_URL=postgresql://… HOLDFAST_ARTIFACTS=/var/lib/jobs python examples/rates.py

The service is a small local server. Jobs cannot reach local addresses by default, so the example allows this one.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import holdfast
from holdfast.outgoing import EgressPolicy

TOKEN = "a-secret-token"
FAILURES = [503]  # the first request fails


class RatesService(BaseHTTPRequestHandler):
    """Stands in for a service that requires the token."""

    def do_GET(self) -> None:
        authorized = self.headers["authorization"] == f"Bearer {TOKEN}"
        status = FAILURES.pop() if FAILURES else 200 if authorized else 401
        body = json.dumps({"eur": 1, "usd": 1.16, "=cmd()": 0}).encode()
        self.send_response(status)
        for name, value in (("content-type", "application/json"), ("content-length", len(body)), ("retry-after", 0)):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


async def main(url: str, folder: Path) -> list[str]:
    service = HTTPServer(("127.0.0.1", 0), RatesService)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    port = service.server_port
    app = holdfast.App(
        url,
        name="rates",
        artifacts=folder,
        egress=EgressPolicy(allow=("127.0.0.1/32",), plain_secrets=True),
        secrets=lambda name, tenant: TOKEN if (name, tenant) == ("RATES_TOKEN", "default") else None,
    )
    # Only this host gets the header. The settings name the secret; its value comes from `secrets` above.
    await app.connectors.aset(
        "http.request",
        hosts=[f"127.0.0.1:{port}"],
        headers={"Authorization": {"secret": "RATES_TOKEN", "prefix": "Bearer "}},
    )
    current: dict[str, float] = {}

    @app.report("rates")
    def rates(base: str) -> Iterator[list[object]]:
        for currency, rate in current.items():
            yield [base, currency, rate]

    worker = app.worker(poll=0.02, promote_every=0.05)
    working = asyncio.create_task(worker.run())
    lines = []
    # The first URL is allowed. The second host is not configured, and the third address is never allowed.
    for target in (f"http://127.0.0.1:{port}/rates", f"http://localhost:{port}/rates", "http://169.254.169.254/"):
        handle = await app.aenqueue("http.request", {"url": target})
        job = await handle.await_end(timeout=60)
        lines.append(f"{job.state}: {job.error_message or (await handle.aresult())['json']}")
        if job.error_code is None:
            current |= (await handle.aresult())["json"]
    columns = ["base", "currency", "rate"]
    report = await app.aenqueue(
        "report.generate", {"source": "rates", "arguments": {"base": "eur"}, "columns": columns}
    )
    result = await report.aresult(timeout=60)
    assert app.artifacts is not None
    lines += app.artifacts.get(result["artifact"], tenant="default").decode().splitlines()
    worker.stop()
    await working
    await app.aclose()
    service.shutdown()
    service.server_close()
    return lines


if __name__ == "__main__":
    scratch = Path(tempfile.mkdtemp())
    database = os.environ.get("HOLDFAST_URL") or f"sqlite:///{scratch}/rates.db"
    for line in asyncio.run(main(database, scratch / "artifacts")):
        print(line)
