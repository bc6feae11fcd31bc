"""A Litestar application with jobs: a worker in the same process, and the dashboard at /jobs/.

    python examples/litestar_shop.py                                          # enqueue a job and exit
    uvicorn --factory --app-dir examples litestar_shop:make_site              # serve it

Install with: pip install 'holdfast[litestar]' httpx
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from litestar import Litestar, Request, post
from litestar.params import FromPath
from litestar.testing import TestClient

import holdfast
from holdfast.integrations.litestar import HoldfastPlugin, Identity, JobsDep, identity


def current_user(request: Request[Any, Any, Any]) -> Identity | None:
    user = request.headers.get("x-user")  # use your authentication instead: request.user, request.session
    return None if user is None else identity(user, "operator")


@post("/greetings/{name:str}")
async def greet(name: FromPath[str], jobs: JobsDep) -> str:
    handle = await jobs.aenqueue("greet", {"name": name})
    result: str = await handle
    return result


def make_site(url: str | None = None) -> Litestar:
    url = url or os.environ.get("HOLDFAST_URL") or f"sqlite:///{Path(tempfile.mkdtemp())}/greetings.db"
    jobs = holdfast.App(url, name="greetings")

    @jobs.job("greet")
    async def say_hello(name: str) -> str:
        return f"Hello, {name}!"

    plugin = HoldfastPlugin(jobs, worker=True, path="/jobs", authenticate=current_user)
    return Litestar([greet], plugins=[plugin], logging_config=None)


def main(url: str | None = None) -> str:
    with TestClient(make_site(url)) as client:
        greeting: str = client.post("/greetings/Ada").text
        print(greeting)
        print(f"dashboard: {client.get('/jobs/').status_code} without a user, ", end="")
        print(f"{client.get('/jobs/', headers={'x-user': 'ada'}).status_code} with one")
        return greeting


if __name__ == "__main__":
    main()
