"""The dashboard in a browser: contents, actions, keyboard, accessibility, and live updates."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Unpack
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, TimeoutError, expect

from holdfast.app.internals import session_of
from holdfast.engine.states import State
from holdfast.server.rendering import MENU, TABS
from holdfast.stores.requests import JobsWanted
from tests.browser import hostile
from tests.browser.conftest import Open, Site
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-16")

NARROW = {"width": 390, "height": 800}


def a_job(site: Site, **wanted: Unpack[JobsWanted]) -> str:
    return site.app.jobs.list(limit=1, **wanted)[0].id


def pages_of(site: Site) -> list[str]:
    """Every page of the menu, and those below."""
    below = [f"/jobs/{a_job(site, kind=kind)}" for kind in (hostile.KIND, "breaks")]
    names = [f"/queues/{quote(hostile.QUEUE, safe='')}", f"/kinds/{quote(hostile.KIND, safe='')}", "/queues/default"]
    charts = ["/?by=queue&range=24h", "/?by=kind", "/kinds/breaks?range=7d"]
    menu = [path for path, _ in (*MENU, *TABS)]
    return [*menu, *names, *charts, "/jobs?q=nonsense:1", "/operations", f"{below[1]}/edit", *below]


def harmed(page: Page) -> bool:
    return bool(page.evaluate("window.harmed === 1"))


DARK_CONTRAST = (
    "() => axe.run({runOnly: ['color-contrast'], resultTypes: ['violations']})"
    ".then((found) => found.violations.flatMap((each) => each.nodes.map((node) => node.failureSummary)))"
)


@pytest.mark.slow
def test_pages_are_accessible_and_run_no_user_input(open_page: Open, site: Site) -> None:
    """Axe finds nothing in either color scheme, the console has no message (such as a policy violation), and no user
    input runs."""
    page = open_page("/", expected=("404", "422"))
    wrong: list[str] = []
    for path in pages_of(site):
        page.emulate_media(color_scheme="light")
        answer = page.goto(f"{site.address}{path}")
        assert answer is not None
        assert answer.status in (200, 404, 422), path
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        result = Axe().run(page, options={"resultTypes": ["violations"]})
        if result.violations_count:
            wrong.append(f"{path}: {result.generate_report()}")
        page.emulate_media(color_scheme="dark")
        wrong += [f"{path}, dark: {each}" for each in page.evaluate(DARK_CONTRAST)]
        for width in (768, 390):
            page.set_viewport_size({"width": width, "height": 800})
            if not page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"):
                wrong.append(f"{path} is wider than {width} pixels")
        page.set_viewport_size({"width": 1360, "height": 800})
        assert not harmed(page), path
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_hostile_text_is_shown_literally_and_secrets_are_hidden(open_page: Open, site: Site) -> None:
    page = open_page(f"/jobs/{a_job(site, kind=hostile.KIND)}")
    assert page.inner_text("h1") == hostile.KIND
    shown = page.inner_text("main")
    for part in (hostile.SCRIPT, hostile.BREAK, hostile.TEMPLATE, hostile.LINK, hostile.TAG):
        assert part in shown
    assert page.locator(f'a[href^="{hostile.LINK}"]').count() == 0
    page.goto(f"{site.address}/jobs/{a_job(site, kind='secret')}")
    assert "Restricted: not shown here." in page.inner_text("main")
    assert "canary" not in page.content()
    page.goto(f"{site.address}/jobs/{a_job(site, kind='breaks')}")
    assert "raise ValueError" in page.inner_text("pre >> nth=0")
    assert not harmed(page)


def test_list_is_filtered_and_paged_by_url(open_page: Open, site: Site) -> None:
    page = open_page("/jobs?state=queued")
    rows = page.locator("table[data-rows] tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    expect(page).to_have_url(re.compile("before="))
    expect(rows).to_have_count(11)
    page.get_by_role("searchbox").fill("queue:later")
    page.get_by_role("button", name="Search").click()
    expect(rows).to_have_count(1)
    assert "q=queue%3Alater" in page.url
    assert "state=queued" in page.url
    page.get_by_role("searchbox").fill(a_job(site, kind="asks"))
    page.get_by_role("button", name="Search").click()
    expect(page.locator("h1")).to_have_text("asks")
    expect(page.get_by_label("Timeline").or_(page.locator("svg.bars"))).to_be_visible()
    assert "Why it is waiting" in page.inner_text("main")
    page.goto(f"{site.address}/")
    page.locator("a.figure", has_text="Waiting").click()
    expect(page).to_have_url(re.compile(r"/jobs\?state=queued$"))


@pytest.mark.slow
def test_queue_is_paused_by_keyboard_and_has_charts(open_page: Open, site: Site) -> None:
    page = open_page("/queues")
    row = page.locator("tbody tr", has=page.get_by_role("link", name="default", exact=True))
    row.locator("summary", has_text="Pause").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("deploy")
    page.keyboard.press("Enter")
    expect(page.locator(".flash")).to_have_text("Paused queue default of tenant default.")
    expect(row).to_contain_text("deploy")
    row.get_by_role("button", name="Resume").press("Enter")
    expect(page.locator(".flash")).to_have_text("Resumed queue default of tenant default.")
    assert site.app.pauses.list() == []
    row.get_by_role("link", name="default", exact=True).press("Enter")
    expect(page.locator("h1")).to_have_text("default")
    expect(page.locator(".plot canvas")).to_have_count(2)
    page.get_by_role("navigation", name="Range").get_by_role("link", name="7 days").press("Enter")
    expect(page).to_have_url(re.compile(r"/queues/default\?range=7d$"))
    expect(page.locator("figcaption").first).to_contain_text("last 7 days")


@pytest.mark.slow
def test_refresh_in_progress_keeps_typed_text(open_page: Open, site: Site) -> None:
    page = open_page("/queues")
    expect(page.locator("#live-state span")).to_have_text("Live")
    held: list[Route] = []
    page.route("**/queues", lambda route: held.append(route))
    site.app.enqueue("waits", {"n": 0}, queue="default")
    # The request may also be the one that follows the connection of the stream.
    until(lambda: page.evaluate("true") and held, "the page reads its rows again")
    page.evaluate("document.addEventListener('htmx:beforeSwap', () => setTimeout(() => { window.answered = true; }))")
    row = page.locator("tbody tr", has=page.get_by_role("link", name="default", exact=True))
    row.locator("summary", has_text="Pause").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("deploy")
    held[0].continue_()
    until(lambda: page.evaluate("window.answered === true"), "the response arrives")
    assert page.evaluate("document.activeElement.value") == "deploy"


@pytest.mark.slow
def test_keyboard_shortcuts(open_page: Open) -> None:
    page = open_page("/")

    def pressed() -> bool:  # both keys must come within 1.5 s, which a busy machine may miss
        page.keyboard.press("g")
        page.keyboard.press("j")
        with suppress(TimeoutError):
            page.wait_for_url("**/jobs", timeout=5_000)
        return page.url.endswith("/jobs")

    until(pressed, "the list of jobs")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("gj?")
    expect(page.get_by_role("searchbox")).to_have_value("gj?")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tbody tr").nth(1).locator("a")).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("x")
    expect(page.locator("tbody tr").first.locator("input")).to_be_checked()
    expect(page.locator("[data-picked]")).to_have_text("1 selected")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/jobs/[0-9a-f-]{36}$"))


@pytest.mark.slow
def test_color_scheme_is_kept_and_narrow_screens_fold_the_menu(open_page: Open, site: Site) -> None:
    page = open_page("/jobs?state=queued", viewport=NARROW)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    expect(page.get_by_role("link", name="Approvals")).to_be_hidden()
    page.locator(".menu-label").click()
    expect(page.get_by_role("link", name="Approvals")).to_be_visible()
    with page.expect_navigation():  # until the page and its styles are loaded
        page.get_by_role("button", name="Dark").click()
    assert page.url.endswith("/jobs?state=queued")
    dark = page.evaluate(ground)
    assert dark != light
    page.goto(f"{site.address}/jobs/{a_job(site, kind=hostile.KIND)}")
    assert page.evaluate(ground) == dark
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.slow
def test_pages_work_without_javascript(open_page: Open, site: Site) -> None:
    job = a_job(site, kind="waits", state=State.QUEUED)
    page = open_page(f"/jobs/{job}", java_script_enabled=False)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1")).to_have_text("Cancel this job (waits)?")
    assert site.app.jobs.get(job).state is State.QUEUED
    page.get_by_role("button", name="Confirm").click()
    assert "Cancelled." in page.inner_text(".flash")
    assert "cancelled" in page.inner_text(".badge >> nth=0")
    page.reload()
    assert page.locator(".flash").count() == 0
    page.goto(f"{site.address}/jobs?state=queued")
    page.locator("input[name=id]").first.check()
    page.locator("button[value=cancel]").click()
    expect(page.locator("h1")).to_have_text("Cancel 1 selected job?")
    page.get_by_role("link", name="Go back").click()
    expect(page).to_have_url(re.compile(r"/jobs\?state=queued$"))
    page.locator("button[value=cancel]").click()
    assert "No jobs selected." in page.inner_text(".flash")


@pytest.mark.slow
def test_live_updates_pause_and_report_lost_connection(open_page: Open, site: Site) -> None:
    """A page updates itself, stops when paused, and shows when the connection is lost."""
    page = open_page("/jobs?q=queue:fresh", expected=("ERR_", "Failed to load"))
    expect(page.locator("#live-state span")).to_have_text("Live")
    site.app.enqueue("waits", {"n": 1}, queue="fresh")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody input[name=id]").check()
    site.app.enqueue("waits", {"n": 2}, queue="fresh")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody input[name=id]:checked")).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#live-state span")).to_contain_text("Paused")
    site.app.enqueue("waits", {"n": 3}, queue="fresh")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    page.route("**/live", lambda route: route.abort())
    page.evaluate("document.dispatchEvent(new Event('holdfast:pause'))")
    page.evaluate("document.dispatchEvent(new Event('holdfast:pause'))")
    expect(page.locator("#live-state span")).to_contain_text("Stale since")


@pytest.mark.slow
def test_change_during_a_refresh_is_shown(open_page: Open, site: Site) -> None:
    """The first refresh is answered late, with what was true before the change."""
    job = site.app.enqueue("late", queue="late", delay=3600)
    page = open_page(f"/jobs/{job.id}")
    expect(page.locator("#live-state span")).to_have_text("Live")
    page.wait_for_load_state("networkidle")
    held: list[Route] = []
    page.route(f"**/jobs/{job.id}", lambda route: held.append(route) if not held else route.continue_())
    site.app.enqueue("late", queue="late", delay=3600)
    with page.expect_request(f"**/jobs/{job.id}"):
        pass
    old = page.content()
    site.app.jobs.cancel(job.id)
    page.wait_for_timeout(1500)  # the signal of this change arrives while the request is open
    held[0].fulfill(status=200, content_type="text/html", body=old)
    expect(page.locator("main .badge").first).to_contain_text("cancelled")


@pytest.mark.slow
def test_bulk_redrive_is_confirmed_and_tracked(open_page: Open, site: Site) -> None:
    page = open_page("/jobs?state=dead_letter&q=kind:breaks")
    dead = page.locator("tbody tr").count()
    assert dead == 3
    page.get_by_label("All matching jobs").check()
    page.get_by_role("button", name="Redrive").click()
    expect(page.locator("#ask-question")).to_have_text("Redrive all matching jobs?")
    page.get_by_role("button", name="Go back").click()
    assert "/jobs?" in page.url
    page.get_by_role("button", name="Redrive").click()
    page.get_by_role("button", name="Confirm").click()
    page.wait_for_url("**/operations/*")
    operation = page.url.rsplit("/", 1)[1]
    site.app.operations.run(operation)  # as a worker would
    expect(page.locator("main .badge").first).to_contain_text("done")
    expect(page.locator("main")).to_contain_text("3 of 3 done")
    again = until(lambda: site.app.jobs.list(kind="breaks", state=State.QUEUED), "the jobs are queued again")
    assert len(again) == 3
    ledger = session_of(site.app).run(session_of(site.app).store.jobs.history(again[0].id, "default"))
    assert ledger[-1].type == "redrive"
