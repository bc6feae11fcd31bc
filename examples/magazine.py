"""A workflow that produces a magazine: fetch pages in parallel, render them together, print and post.

One page cannot be fetched at first. The jobs that depend on it are skipped, and the others run. When the page is
available, the workflow is resumed at the failed job. Run: python examples/magazine.py [URL]
"""

from __future__ import annotations

import asyncio
import sys

import holdfast
from holdfast import Retry

missing_pages = {3}


def declare(app: holdfast.App) -> tuple[holdfast.Kind[..., str], ...]:
    once = Retry(max_attempts=1)

    @app.job(retry=once)
    def fetch(page: int) -> str:
        if page in missing_pages:
            raise FileNotFoundError(f"page {page} does not exist yet")
        return f"page {page}"

    @app.job(retry=once)
    async def render(ctx: holdfast.Context, title: str) -> str:
        pages = (await ctx.results()).of(fetch)  # list[str], in the order of the plan
        return f"{title}: {', '.join(pages)}"

    @app.job(retry=once)
    def post(ctx: holdfast.SyncContext, copies: int) -> str:
        return f"{copies} × {ctx.results()['print']}"

    @app.job("print", retry=once)
    def print_(ctx: holdfast.SyncContext) -> str:
        return ctx.results().one(render)

    @app.job(retry=once)
    def advertise() -> str:
        return "out soon"

    return fetch, render, post, advertise


async def main(url: str) -> dict[str, str]:
    app = holdfast.App(url, name="magazine")
    fetch, render, post, advertise = declare(app)

    wf = app.workflow("issue", key="2027-01")
    cover = wf.add(fetch, 0, name="cover")
    pages = wf.group("pages", *(fetch.prepare(n) for n in range(1, 5)))
    book = wf.add(render, "January", after=[cover, pages], name="book")
    printed = wf.add("print", after=book, name="print")
    wf.add(post, 500, after=printed, name="post")
    wf.add(advertise, after=printed, on_failure="continue", name="advertise")
    run = await wf.astart()

    await app.atick(limit=100)
    graph = await app.workflows.agraph(run.id)
    print(f"the issue is {graph.workflow.status}, its pages are {graph.parts()['pages']}")
    print("skipped:", ", ".join(node.label for node in graph.nodes if node.status == "skipped"))

    missing_pages.clear()
    resumed = await app.workflows.aresume(run.id, reason="the page has arrived")
    print(f"resumed {resumed.jobs} job(s)")
    await app.atick(limit=100)
    workflow = await run.await_end(timeout=10)
    print(f"the issue is {workflow.status}: {workflow.succeeded} of {workflow.total} jobs")
    last = next(node for node in (await app.workflows.agraph(run.id)).nodes if node.label == "post")
    print((await app.jobs.aresult(last.job_id)).value)
    states = {node.label: node.status for node in (await app.workflows.agraph(run.id)).nodes}
    await app.aclose()
    return states


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///magazine.db"))
