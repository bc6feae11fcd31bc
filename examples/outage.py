"""A mail server is down: pause its queue, refuse new jobs, and resume. Run: python examples/outage.py [URL]"""

from __future__ import annotations

import asyncio
import sys

import holdfast
from holdfast.errors import Refused


async def main(url: str = "sqlite:///outage.db") -> list[str]:
    app = holdfast.App(url, name="outage", enqueued_by="ada")
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        print(line)

    @app.job(queue="mail")
    async def send(to: str) -> str:
        return f"sent to {to}"

    @app.job
    async def add(a: int, b: int) -> int:
        return a + b

    # Jobs of a paused queue wait; other queues are not affected.
    app.pauses.set(queue="mail", reason="the mail server is down", until="1h")
    letter, total = await send.aenqueue("bob"), await add.aenqueue(2, 3)
    await app.atick(queues=("default", "mail"))
    report(f"the sum is {await total.aresult()}")
    report(f"the letter is {await letter.astate()}: {app.jobs.why(letter.id).reasons[0].says.split(': ')[-1]}")
    health = app.health.get()
    report(f"health: {health.verdict}, {[reason.code for reason in health.reasons if reason.level != 'advice']}")

    # A pause can also refuse new jobs.
    app.pauses.set(queue="mail", reason="the mail server is down", refuse_enqueue=True)
    try:
        await send.aenqueue("eve")
    except Refused as error:
        report(f"refused: {error.code}")

    app.pauses.remove(queue="mail")
    await app.atick(queues=("default", "mail"))
    report(await letter.aresult())
    await app.aclose()
    return lines


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
