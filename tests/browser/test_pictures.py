"""Pictures of the main pages for README and docs; written only if HOLDFAST_SCREENSHOTS names a folder."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from holdfast import App
from holdfast.app.internals import session_of
from holdfast.engine.states import State
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine
from tests.browser.conftest import in_new_thread
from tests.browser.seeds import usual_app
from tests.support.http_server import serving
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-16")

WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 780}


@pytest.fixture(scope="module")  # checked before the browser, which takes seconds to start
def folder(pictures: Path | None) -> Path:
    if pictures is None:
        pytest.skip("HOLDFAST_SCREENSHOTS names no folder: no pictures")
    return pictures


def test_pictures_of_the_main_pages(folder: Path, browser: Browser, tmp_path: Path) -> None:
    def shoot(name: str, address: str, path: str, scheme: str, size: dict[str, int] = WIDE) -> None:
        context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1)  # type: ignore[arg-type]
        page: Page = context.new_page()
        page.goto(address + path)
        page.wait_for_selector("#live-state[data-is=live]", state="attached")
        page.screenshot(path=folder / f"dashboard-{name}.png")
        assert page.title().endswith("Holdfast")
        context.close()

    with closing(in_new_thread(lambda: usual_app(tmp_path))) as app, idle_worker(app):
        dead = app.jobs.list(state=State.DEAD_LETTER, kind="invoice.render", limit=1)[0].id
        with serving(make_service(app, authenticate=at_this_machine(app))) as address:
            shoot("overview", address, "/", "light")
            shoot("overview-dark", address, "/", "dark")
            shoot("jobs", address, "/jobs", "light")
            shoot("jobs-dark", address, "/jobs", "dark")
            shoot("job", address, f"/jobs/{dead}", "light")
            shoot("job-dark", address, f"/jobs/{dead}", "dark")
            shoot("narrow", address, "/jobs", "dark", NARROW)


class idle_worker:
    """A running worker without jobs, so that the pictures show one."""

    def __init__(self, app: App) -> None:
        self._worker = app.worker(queues=("mail-later",), concurrency=8)
        self._app, self._thread = app, threading.Thread(target=self._run)

    def _run(self) -> None:
        async def serve() -> None:
            try:
                await self._worker.run()
            finally:
                await session_of(self._app).store.leave_loop()

        asyncio.run(serve())

    def __enter__(self) -> None:
        self._thread.start()
        until(lambda: self._app.health.get().workers, "a worker is alive")

    def __exit__(self, *_: object) -> None:
        self._worker.stop()
        self._thread.join(30)
