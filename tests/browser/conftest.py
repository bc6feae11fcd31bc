"""A real browser (the installed Chromium) on the real service behind a local socket.

Without a browser these tests are skipped; in CI that is an error. With HOLDFAST_SCREENSHOTS set to a folder, pictures
of the main pages are written there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import App
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine
from tests.browser.seeds import hostile_app
from tests.support.http_server import serving

T = TypeVar("T")

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--no-default-browser-check", "--disable-extensions", "--mute-audio"),
    *("--disable-dev-shm-usage", "--disable-features=Translate,OptimizationHints,MediaRouter"),
)


# A limit for busy machines; correct pages do not wait.
TIMEOUT = 20_000
expect.set_options(timeout=TIMEOUT)


@dataclass(frozen=True, slots=True)
class Site:
    """The service on a socket, and the app it serves."""

    address: str
    app: App


class Console:
    """Errors and warnings of a page; a test must end with none."""

    def __init__(self, page: Page) -> None:
        self.messages: list[str] = []
        self.expected: tuple[str, ...] = ()
        page.on("console", lambda message: self._record(message.type, message.text))
        page.on("pageerror", lambda error: self._record("error", str(error)))

    def _record(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(part in text for part in self.expected):
            self.messages.append(text)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI requires Chromium, which is not installed")
        pytest.skip(f"NO BROWSER: none of {', '.join(NAMES)} is installed, so no page was tested")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(QUIET))
        yield browser
        browser.close()


def in_new_thread(work: Callable[[], T]) -> T:
    """Run it in another thread: in this one the browser driver has a running loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(60)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Hostile text in every field; mounted below a path of another application."""
    with closing(in_new_thread(lambda: hostile_app(tmp_path_factory.mktemp("hostile")))) as app:
        inner = make_service(app, authenticate=at_this_machine(app))
        outer = Starlette(routes=[Mount("/ops/jobs", inner)], lifespan=inner.router.lifespan_context)
        with serving(outer) as address:
            yield Site(f"{address}/ops/jobs", app)


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, site: Site) -> Iterator[Open]:
    """Open a page in a new browser context; afterwards no console may have a message."""
    contexts: list[Any] = []
    consoles: list[Console] = []

    def make(path: str = "/", *, expected: tuple[str, ...] = (), **settings: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings})
        context.set_default_timeout(TIMEOUT)
        contexts.append(context)
        page: Page = context.new_page()
        console = Console(page)
        console.expected = expected
        consoles.append(console)
        page.goto(f"{site.address}{path}")
        return page

    yield make
    for context in contexts:
        context.close()
    assert [line for console in consoles for line in console.messages] == []


@pytest.fixture(scope="session")
def pictures() -> Path | None:
    """The folder for pictures, if any."""
    named = os.environ.get("HOLDFAST_SCREENSHOTS")
    if not named:
        return None
    folder = Path(named)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
