"""A trace that continues from a request to a job, its child and its logs. Run: python examples/traced.py [URL]"""

from __future__ import annotations

import asyncio
import io
import json
import sys

import holdfast

# The header of an incoming request, as a web framework provides it.
HEADER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def make_app(url: str) -> holdfast.App:
    app = holdfast.App(url, name="traced")

    @app.job
    async def order(ctx: holdfast.Context, number: int) -> None:
        ctx.log.info("taking order %s, card password=%s", number, "hunter22")  # the secret is redacted
        await ctx.spawn("ship", {"number": number})

    @app.job
    async def ship(ctx: holdfast.Context, number: int) -> None:
        headers = holdfast.outgoing_headers()  # for the call to the shipping service
        ctx.log.info("calling the shipper with %s", headers["traceparent"])

    return app


async def main(url: str) -> list[str]:
    lines = io.StringIO()
    holdfast.configure_logging(stream=lines)
    app = make_app(url)
    try:
        with holdfast.trace_from(HEADER):
            await app.aenqueue("order", {"number": 7})
        await app.atick(10)
        await app.atick(10)  # runs the child that the first tick created
    finally:
        await app.aclose()
        holdfast.configure_logging(json=False, level="warning")
    printed = []
    for text in lines.getvalue().splitlines():
        line = json.loads(text)
        if "job" in line:
            printed.append(f"{line['trace_id'][:8]} {line['kind']}: {line['message']}")
            print(printed[-1])
    return printed


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///traced.db"))
